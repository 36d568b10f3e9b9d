"""The error of the embedded servers."""


class EmbeddedServerError(RuntimeError):
    """An embedded server is missing, did not start, or stopped on its own.

    The message says which of these, and what to do: the package to install, the environment variable to set, or the
    process to stop. It ends with the last lines of the server's log, if there are any.
    """
