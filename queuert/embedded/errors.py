"""The error of the embedded servers."""

from __future__ import annotations

from queuert.errors import ErrorKind, QueuertError


class EmbeddedServerError(QueuertError, RuntimeError):
    """An embedded server is missing, did not start, or stopped on its own.

    The message says which of these, and what to do: the package to install, the environment variable to set, or the
    process to stop. It ends with the last lines of the server's log, if there are any.
    """

    kind = ErrorKind.UNAVAILABLE
