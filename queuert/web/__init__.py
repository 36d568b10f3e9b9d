"""The HTTP interface: an ASGI application that starts, reads, follows and manages chains. It needs ``queuert[web]``.

:class:`WebApp` is mounted in an application of yours (FastAPI, Starlette, Litestar, Django), or served alone by
``queuert web``. It is closed until ``access=`` says who may do what.
"""

from queuert.optional_packages import needing_extras

with needing_extras():
    from queuert.web.access import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access, Action, bearer_tokens
    from queuert.web.app import WebApp
    from queuert.web.callbacks import CallbackApp
    from queuert.web.problems import answer_error
    from queuert.web.tokens import StreamTokens

__all__ = [
    "Access",
    "Action",
    "CallbackApp",
    "FULL_ACCESS",
    "NO_ACCESS",
    "READ_ACCESS",
    "StreamTokens",
    "WebApp",
    "answer_error",
    "bearer_tokens",
]
