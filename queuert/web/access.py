"""Who may do what over HTTP: the actions, and what a request is allowed."""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request

from queuert.errors import ConfigurationError
from queuert.web.problems import Problem


class Action(StrEnum):
    """What a request does. Each route needs one action; :class:`Access` names those that a request is allowed.

    >>> Action("cancel") is Action.CANCEL
    True
    """

    READ = "read"
    """Read chains and jobs, without payloads."""
    READ_PAYLOADS = "read_payloads"
    """Read inputs, outputs, errors and the messages of progress as well."""
    START = "start"
    CANCEL = "cancel"
    RETRY = "retry"
    COMPLETE = "complete"
    """Complete open chains instead of their handlers, and send events to them."""
    TRIGGER = "trigger"
    """Let a scheduled job, or the next run of a schedule, begin now."""
    PAUSE = "pause"
    """Pause and resume job types and schedules."""
    CHANGE = "change"
    """Give waiting jobs another due time or priority, failed ones another input, and types another event level."""
    DELETE = "delete"
    EDIT_WEBHOOKS = "edit_webhooks"
    """Make, change and delete webhooks, and see new secrets."""
    REPLAY_WEBHOOKS = "replay_webhooks"
    """Ping webhooks, and have deliveries made again."""


@dataclass(frozen=True)
class Access:
    """What a request may do.

    Args:
        actions: the allowed actions, or their names.
        principal: who sends the request, such as a user id. Idempotency keys and the limit of waiting requests are
            those of one principal.

    Raises:
        ConfigurationError: an action does not exist.

    Example:
        >>> sorted(Access(["read", "cancel"], principal="ada").actions)
        [<Action.CANCEL: 'cancel'>, <Action.READ: 'read'>]
    """

    actions: Iterable[Action | str] = ()
    principal: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.actions, str):
            raise ConfigurationError(f"actions must be a sequence of actions, got {self.actions!r}: write [...]")
        try:
            object.__setattr__(self, "actions", frozenset(Action(one) for one in self.actions))
        except ValueError as error:
            raise ConfigurationError(f"actions must be some of {', '.join(Action)}: {error}") from None

    def allows(self, action: Action) -> bool:
        """Whether the action is allowed."""
        return action in self.actions


NO_ACCESS = Access()
READ_ACCESS = Access([Action.READ])
FULL_ACCESS = Access(Action)

AccessCallback: TypeAlias = Callable[[Request], Access | Awaitable[Access]]
"""Returns what a request may do. It may raise ``starlette.exceptions.HTTPException``, such as 401."""


def bearer_tokens(tokens: Mapping[str, Access]) -> BearerTokens:
    """Return an ``access`` for requests with ``Authorization: Bearer TOKEN``; others get 401.

    Browsers log in to the dashboard with a token. From then on they send a cookie that stands for it.

    Args:
        tokens: what the bearer of each token may do. A token has 16 characters or more.

    Raises:
        ConfigurationError: there is no token, or one is too short.

    Example::

        app = WebApp(client, access=bearer_tokens({os.environ["OPERATOR_TOKEN"]: FULL_ACCESS}))
    """
    if not tokens or any(len(token) < _SHORTEST_TOKEN for token in tokens):
        raise ConfigurationError(f"tokens must be one or more texts of {_SHORTEST_TOKEN} characters or more each")
    return BearerTokens(tokens)


COOKIE = "queuert_session"


class BearerTokens:
    """The ``access`` that :func:`bearer_tokens` returns."""

    def __init__(self, tokens: Mapping[str, Access]) -> None:
        self._by_digest = [(_digest(token), _session(token), access) for token, access in tokens.items()]

    def __call__(self, request: Request) -> Access:
        """Return what the bearer of the request's token, or of its cookie, may do.

        Raises:
            HTTPException: 401, it has neither, or a wrong one.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found: Access | None = None
        if scheme.lower() == "bearer":
            digest = _digest(given.strip())
            for known, _, allowed in self._by_digest:
                found = allowed if hmac.compare_digest(known, digest) else found
        elif not scheme:
            session = request.cookies.get(COOKIE, "").encode(errors="surrogateescape")
            for _, known, allowed in self._by_digest:
                found = allowed if hmac.compare_digest(known, session) else found
        if found is None:
            raise HTTPException(
                401, "the request must have a valid token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )
        return found

    def session(self, token: str) -> str | None:
        """Return the value of the cookie that stands for a token; None if there is no such token."""
        digest, found = _digest(token), None
        for known, session, _ in self._by_digest:
            found = session.decode() if hmac.compare_digest(known, digest) else found
        return found


_SHORTEST_TOKEN = 16


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _session(token: str) -> bytes:
    """What a cookie has instead of the token, which it does not reveal."""
    key = token.encode(errors="surrogateescape")
    return hmac.new(key, b"queuert dashboard session", hashlib.sha256).hexdigest().encode()


_ACCESS = "queuert.access"
"""The key of the scope for the access of the request, whatever it was refused."""


def access_of(request: Request) -> Access | None:
    """Return what the request may do, if that was found out."""
    found: Access | None = request.scope.get(_ACCESS)
    return found


async def checked_access(
    callback: AccessCallback | None, request: Request, action: Action | None, *, form: bool = False
) -> Access:
    """Return what the request may do; ``action`` None needs any action at all.

    ``form`` says that only browsers send such a change: see :func:`refuse_other_sites`.

    Raises:
        Problem: it may not do this, or another site has sent it.
    """
    if callback is None:
        raise Problem(
            403, "closed", "this application was made without access=: pass a function that says who may do what"
        )
    answer = callback(request)
    access = await answer if inspect.isawaitable(answer) else answer
    if not isinstance(access, Access):
        raise TypeError(f"access must return an Access, got {type(access).__name__}")
    request.scope[_ACCESS] = access
    if action is None:
        if not access.actions:
            raise Problem(403, "not-allowed", "this request needs access, and has none")
    elif not access.allows(action):
        raise Problem(403, "not-allowed", f"this request needs the action {action.value!r}, which its access lacks")
    if request.method not in ("GET", "HEAD"):
        refuse_other_sites(request, form=form)
    return access


def refuse_other_sites(request: Request, *, form: bool = False) -> None:
    """Refuse what a page of another site makes a browser send, with the cookies of this one.

    Browsers tell the site of a page in ``Sec-Fetch-Site``, older ones only its ``Origin``. Programs send neither, which
    is refused for a ``form`` without a bearer token. No browser sends such a token by itself, but a proxy may add it to
    the forms that it passes on: what they say of their site counts with a token, too.

    Raises:
        Problem: 403, it comes from another site, or a form does not say from which.
    """
    bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if bearer and (not form or (site is None and origin is None)):
        return
    if form and site is None and origin is None:
        raise Problem(
            403,
            "no-origin",
            "a form must say from which site it is: send Origin or Sec-Fetch-Site, as browsers do, or a bearer token",
        )
    if site is not None:
        same = site == "same-origin"
    else:
        same = origin is None or origin.partition("://")[2] == request.url.netloc
    if not same:
        raise Problem(403, "other-site", "a page of another site must not send this request: send it from this site")
