"""Signed addresses by which another system completes one chain, or sends it an event, and may do nothing else."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from queuert.errors import ConfigurationError, ErrorKind, QueuertError
from queuert.texts import check_step_name

_SHORTEST_SECRET = 32
_LONGEST = 366 * 86_400.0
_LONGEST_TOKEN = 16_384
_CONTEXT = b"queuert callback 1:"


class InvalidCallbackError(QueuertError, ValueError):
    """The token of a callback is not valid, or not any more: the address must be made anew by ``callback_url``."""

    kind = ErrorKind.USAGE


@dataclass(frozen=True, slots=True)
class Callback:
    """What a signed address allows.

    Attributes:
        chain_id: the chain.
        expires_at: until when, in seconds since 1970.
        event: the name of the event that is sent; None if the chain is completed.
        expecting: the job type that the chain's last job must have; None for any.
        id: names this address, so that its event is sent once.
    """

    chain_id: str
    expires_at: float
    event: str | None
    expecting: str | None
    id: str


class CallbackUrls:
    """Makes and checks the addresses of callbacks: ``Client(..., callbacks=CallbackUrls(base, secret))``.

    Args:
        base: the address at which ``CallbackApp`` is served, such as ``https://example.com/callbacks``.
        secrets: texts of 32 characters or more. Addresses are signed with the last one; those that were signed with the
            others are valid as well, so that a secret can be replaced.
        events: the events for which addresses can be made, and the type of the payload of each, which the handler
            passes to ``attempt.wait_for_event`` as well. Others are refused when an address is made, and
            ``CallbackApp`` refuses a payload that is not valid for the type, and leaves the address as it is. By
            default each event can be sent, with any payload: a handler that finds it not valid has taken it.

    Raises:
        ConfigurationError: there is no secret, or one is too short, or the address does not begin with ``https://`` (or
            ``http://``, for tests), or has a query or a fragment, or the name of an event is not valid.

    Example:
        >>> urls = CallbackUrls("https://example.com/callbacks", "s" * 32)
        >>> url = urls.url("chain-1", expires=60.0, id="1")
        >>> urls.opened(url.rpartition("/")[2]).chain_id
        'chain-1'
    """

    def __init__(self, base: str, *secrets: str, events: Mapping[str, Any] | None = None) -> None:
        if not secrets or any(len(one) < _SHORTEST_SECRET for one in secrets):
            raise ConfigurationError(f"secrets must be one or more texts of {_SHORTEST_SECRET} characters or more each")
        if not base.startswith(("https://", "http://")) or "?" in base or "#" in base:
            raise ConfigurationError(
                f"base must be an address that begins with https://, without a query, got {base!r}"
            )
        for name in events or ():
            check_step_name(name, what="an event")
        self.events = None if events is None else dict(events)
        self._base = base.rstrip("/")
        self._keys = tuple(one.encode() for one in secrets)

    def url(
        self,
        chain_id: str,
        *,
        expires: float | timedelta,
        id: str,
        event: str | None = None,
        expecting: str | None = None,
    ) -> str:
        """Return the address for one chain.

        Raises:
            ConfigurationError: ``expires`` is not above 0 seconds and at most a year, or the event is none of
                ``events``.
        """
        if event is not None and self.events is not None and event not in self.events:
            known = ", ".join(map(repr, self.events)) or "none"
            raise ConfigurationError(f"event must be one of the events of CallbackUrls ({known}), got {event!r}")
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else float(expires)
        if not 0 < seconds <= _LONGEST:
            raise ConfigurationError(f"expires must be above 0 seconds and at most a year, got {seconds:g} s")
        body = json.dumps([chain_id, time.time() + seconds, event, expecting, id], ensure_ascii=False).encode()
        return f"{self._base}/{_text(body)}.{_text(_digest(self._keys[-1], body))}"

    def opened(self, token: str) -> Callback:
        """Return what a token allows.

        Raises:
            InvalidCallbackError: it is forged, malformed or expired.
        """
        first, _, second = token.partition(".")
        try:
            if len(token) > _LONGEST_TOKEN:
                raise ValueError(len(token))
            body, given = _bytes(first), _bytes(second)
        except (ValueError, binascii.Error):
            raise InvalidCallbackError("the address of the callback is not valid") from None
        if not any([hmac.compare_digest(given, _digest(key, body)) for key in self._keys]):  # noqa: C419
            raise InvalidCallbackError("the address of the callback is not valid")
        callback = Callback(*json.loads(body))
        if time.time() >= callback.expires_at:
            raise InvalidCallbackError("the address of the callback has expired: ask for a new one")
        return callback


def _digest(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + body, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(data) != text:
        raise ValueError(text)
    return data
