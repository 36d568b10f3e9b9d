"""Signatures of the Standard Webhooks specification, version 1: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from queuert.errors import ConfigurationError
from queuert.texts import safe_text
from queuert.webhooks.errors import WebhookVerificationError

PREFIX = "whsec_"
_BYTES = 32
_SHORTEST, _LONGEST = 24, 64
_VERSION = "v1"
_MOST_SIGNATURES = 32
"""Signatures of one header that are compared: a receiver should not work for whoever sends more."""


def new_secret() -> str:
    """Return a new secret, of 32 random bytes.

    >>> new_secret().startswith("whsec_")
    True
    """
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def checked_secret(secret: object) -> bytes:
    """Return the bytes of a secret, as ``whsec_`` and base64, with or without padding, or base64 alone.

    Raises:
        ConfigurationError: it is not; or it has not 24 to 64 bytes. The message does not repeat it.
    """
    text = secret.removeprefix(PREFIX) if isinstance(secret, str) else ""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise ConfigurationError(
            f"a secret of a webhook must be 'whsec_' and base64 of {_SHORTEST} to {_LONGEST} bytes: use new_secret()"
        )
    return key


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a body, such as ``v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=``.

    Raises:
        ConfigurationError: the secret is not valid, or the id has a dot or characters beside printable ASCII.
    """
    if not id or "." in id or not id.isascii() or not id.isprintable() or " " in id:
        raise ConfigurationError(f"the id of a webhook must be printable ASCII without dots and spaces, got {id!r}")
    return f"{_VERSION},{base64.b64encode(_digest(checked_secret(secret), id, str(timestamp), body)).decode()}"


def signed_headers(
    secret: str | Iterable[str], id: str, body: bytes, *, timestamp: int | None = None
) -> dict[str, str]:
    """Return the headers of a request with this body: id, time, and a signature by each secret.

    Args:
        secret: one secret, or several during a rotation.
        id: names the delivery, and is the same whenever it is repeated.
        body: the bytes that are sent.
        timestamp: seconds since 1970; by default now.

    Raises:
        ConfigurationError: a secret or the id is not valid, or there is no secret.

    Example:
        >>> headers = signed_headers("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_1", b"{}", timestamp=1614265330)
        >>> headers["webhook-signature"][:3]
        'v1,'
    """
    keys = _several(secret)
    at = int(time.time()) if timestamp is None else timestamp
    signatures = " ".join(signature(one, id, at, body) for one in keys)
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": signatures}


@dataclass(frozen=True, slots=True)
class ReceivedWebhook:
    """A webhook whose signature was verified.

    Attributes:
        id: names the delivery. If it is repeated, because your answer was lost, it has the same id: do nothing then,
            and answer 200 again. :class:`RecentIds` remembers ids.
        sent_at: when this attempt was made, UTC.
        payload: the body, decoded from JSON.
    """

    id: str
    sent_at: datetime
    payload: Any

    @property
    def type(self) -> str | None:
        """What happened, such as ``chain.completed``; None if the payload does not say."""
        found = self.payload.get("type") if isinstance(self.payload, dict) else None
        return found if isinstance(found, str) else None

    @property
    def data(self) -> Any:
        """To what it happened; None if the payload does not say."""
        return self.payload.get("data") if isinstance(self.payload, dict) else None


def verify(
    payload: bytes | str,
    headers: Mapping[str, str],
    secret: str | Iterable[str],
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> ReceivedWebhook:
    """Verify a webhook that was received, and return it.

    Pass the body as it was received: a body that was decoded and encoded again has other bytes.

    Args:
        payload: the body.
        headers: the headers of the request, in any case; ``svix-id`` and so on are understood as well.
        secret: the secret of the webhook, or several of them.
        tolerance: how many seconds the time of the attempt may be from now.
        now: seconds since 1970; by default now.

    Raises:
        WebhookVerificationError: it is not authentic. No other error is raised for what somebody has sent.
        ConfigurationError: a secret is not valid, or there is none, or ``tolerance`` is negative or no number.

    Example::

        @app.post("/webhooks")
        async def receive(request: Request) -> Response:
            try:
                webhook = verify(await request.body(), request.headers, os.environ["WEBHOOK_SECRET"])
            except WebhookVerificationError:
                return Response(status_code=401)
            print(webhook.type, webhook.data)
            return Response(status_code=204)
    """
    keys = [checked_secret(one) for one in _several(secret)]
    if not tolerance >= 0:
        raise ConfigurationError(f"tolerance must be at least 0 seconds, got {tolerance!r}")
    lower = {str(name).lower(): value for name, value in headers.items()}
    id, sent, signatures = (_header(lower, name) for name in ("id", "timestamp", "signature"))
    body = payload.encode(errors="surrogateescape") if isinstance(payload, str) else bytes(payload)
    at = _checked_time(sent, time.time() if now is None else now, tolerance)
    expected = [base64.b64encode(_digest(key, id, sent, body)) for key in keys]
    found = False
    for one in signatures.split(" ", _MOST_SIGNATURES)[:_MOST_SIGNATURES]:
        version, _, given = one.partition(",")
        if version == _VERSION:
            # Every comparison is made, and each takes the same time whatever is given.
            encoded = given.encode(errors="surrogateescape")
            for wanted in expected:
                found |= hmac.compare_digest(encoded, wanted)
    if not found:
        raise WebhookVerificationError("no signature of the webhook is that of its body and a secret")
    try:
        return ReceivedWebhook(id, at, json.loads(body))
    except (ValueError, RecursionError):
        raise WebhookVerificationError("the body of the webhook must be JSON") from None


def _several(secret: str | Iterable[str]) -> list[str]:
    found = [secret] if isinstance(secret, str) else list(secret)
    if not found:
        raise ConfigurationError("a webhook needs at least one secret, got none")
    return found


def _digest(key: bytes, id: str, timestamp: str, body: bytes) -> bytes:
    signed = b".".join([id.encode(errors="surrogateescape"), timestamp.encode(errors="surrogateescape"), body])
    return hmac.digest(key, signed, hashlib.sha256)


def _header(headers: Mapping[str, object], name: str) -> str:
    found = headers.get(f"webhook-{name}", headers.get(f"svix-{name}"))
    if isinstance(found, bytes):
        found = found.decode("latin-1")
    if not isinstance(found, str) or not found:
        raise WebhookVerificationError(f"the header webhook-{name} is missing")
    return found


def _checked_time(sent: str, now: float, tolerance: float) -> datetime:
    # Eleven digits last until the year 5138, and are a time for Python.
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 11):
        raise WebhookVerificationError(f"webhook-timestamp must be whole seconds, got {safe_text(sent, 40)!r}")
    at = int(sent)
    if abs(now - at) > tolerance:
        side = "before" if at < now else "after"
        raise WebhookVerificationError(
            f"the webhook was sent {abs(now - at):.0f} s {side} now by this clock, of at most {tolerance:g}"
        )
    return datetime.fromtimestamp(at, UTC)


class RecentIds:
    """Remembers the ids of webhooks for a while, so that a repeated delivery is handled once by this process.

    It forgets when the process ends. Where that matters, write the id in the transaction of what the webhook changes.

    Args:
        seconds: how long an id is remembered; twice the tolerance is enough against a request that somebody repeats.
        most: how many ids are remembered; beyond, the oldest are forgotten.

    Raises:
        ConfigurationError: ``seconds`` is negative or no number, or ``most`` is below 1.

    Example:
        >>> recent = RecentIds()
        >>> recent.add("msg_1"), recent.add("msg_1")
        (True, False)
    """

    def __init__(self, seconds: float = 600.0, *, most: int = 100_000) -> None:
        if not (seconds >= 0 and most >= 1):
            raise ConfigurationError(f"seconds must be at least 0 and most at least 1, got {seconds!r} and {most!r}")
        self._seconds = seconds
        self._most = most
        self._known: OrderedDict[str, float] = OrderedDict()

    def add(self, id: str) -> bool:
        """Remember an id. Return whether it is new."""
        now = time.monotonic()
        while self._known:
            oldest, until = next(iter(self._known.items()))
            if until > now and len(self._known) < self._most:
                break
            del self._known[oldest]
        if id in self._known:
            return False
        self._known[id] = now + self._seconds
        return True
