"""Tells observers which changes people ask for, and whether they were made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import urlencode

from starlette.requests import Request

from queuert.client import AsyncClient
from queuert.observability.events import OperatorActed
from queuert.web.access import Action, access_of

_LONGEST = 1_000
"""The most characters of what a change is of."""

_SECRET = {"input", "output", "payload", "token"}
"""Fields whose values may be secret."""

_NOT_OPERATORS = {Action.READ, Action.READ_PAYLOADS, Action.START, None}
"""What is no change by an operator, over HTTP: reading, and what applications do all day."""


def report(
    client: AsyncClient,
    request: Request,
    interface: Literal["dashboard", "http"],
    action: Action | None,
    change: str,
    given: Iterable[tuple[str, str]],
    error: tuple[Any, ...] | None = None,
) -> None:
    """Report a change that was made, or of its error: the status of the answer, and the code.

    Args:
        client: whose observers it is reported to.
        request: who asks for it.
        interface: by which way.
        action: the action that it needs; a request of another kind is not reported.
        change: the route, such as ``/chain/cancel``.
        given: what the change is of: the fields of the form or of the query.
        error: why it was not made.
    """
    if request.method in ("GET", "HEAD") or (action in _NOT_OPERATORS and interface == "http"):
        return
    refused = error is not None and error[0] in (401, 403)
    access = access_of(request)
    target = urlencode([(name, value) for name, value in given if name not in _SECRET], safe="/:@ ")
    client.observers.emit(
        OperatorActed(
            user=access.principal if access is not None and access.principal else None,
            interface=interface,
            change=change,
            target=target[:_LONGEST],
            outcome="done" if error is None else "refused" if refused else "failed",
            error=None if error is None else error[1],
        )
    )
