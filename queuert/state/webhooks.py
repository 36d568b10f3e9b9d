"""Values of the webhook operations of a store: records of endpoints and their health, and attempts at deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from queuert.errors import InvalidCursorError
from queuert.state.paging import Page, Position

ENDPOINT, HEALTH, DISPATCHER = "endpoint", "health", "dispatcher"
"""The kinds of records."""

DISPATCHER_CURSOR = "cursor"
"""The id of the record with the place of the dispatcher in the event log. Pruning does not pass it."""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """What a store keeps of webhooks under a kind and an id: an endpoint, its health, or where the dispatcher is.

    Attributes:
        tag: changes with each write; a write names the one that it has read.
        body: JSON text.
    """

    kind: str
    id: str
    tag: str
    body: str


@dataclass(frozen=True, slots=True)
class WebhookWrite:
    """A change of a record, which is made only if nobody has changed it since it was read.

    Attributes:
        body: what is stored; None deletes the record.
        tag: the tag that the record gets, never used before.
        expected: the tag of the record as it was read; None if there must be no such record.
    """

    kind: str
    id: str
    body: str | None
    tag: str
    expected: str | None


@dataclass(frozen=True, slots=True)
class NewWebhookAttempt:
    """An attempt at a delivery, which is over.

    Attributes:
        endpoint_id: the endpoint that it was for.
        delivery_id: the ``webhook-id`` that the receiver saw, the same in each attempt.
        event_type: such as ``chain.completed``.
        attempt: 1 for the first.
        status: the HTTP status; None if there was no answer.
        error: what kind of failure it was, such as ``timeout``; None if the delivery was accepted.
        seconds: how long it took.
        retry_in: seconds until the next attempt; None if there is none.
        response: the beginning of the answer's body.
    """

    endpoint_id: str
    delivery_id: str
    event_type: str
    attempt: int
    status: int | None
    error: str | None
    seconds: float
    retry_in: float | None
    response: str | None


@dataclass(frozen=True, slots=True)
class WebhookAttempt(NewWebhookAttempt):
    """An attempt at a delivery as it is stored.

    Attributes:
        at: when it was recorded, by the store's clock, UTC.
    """

    at: datetime

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted it."""
        return self.error is None


def attempts_page(found: Iterable[tuple[WebhookAttempt, str]], limit: int) -> Page[WebhookAttempt]:
    """Return a page from up to ``limit + 1`` attempts, each with what its cursor consists of."""
    entries = list(found)
    items = tuple(attempt for attempt, _ in entries[:limit])
    if len(entries) <= limit:
        return Page(items, None)
    _, last = entries[limit - 1]
    return Page(items, Position(last, "webhook").encode())


def attempt_number(cursor: str | None) -> int | None:
    """Return the number in a cursor of the attempts of a store that numbers them.

    Raises:
        InvalidCursorError: it is not such a cursor.
    """
    if cursor is None:
        return None
    position = Position.decode(cursor)
    if position.id != "webhook" or not (position.key.isascii() and position.key.isdigit() and len(position.key) < 19):
        raise InvalidCursorError(cursor)
    return int(position.key)
