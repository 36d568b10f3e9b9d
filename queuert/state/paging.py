"""Filters, cursors and pages of the listings of a store."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from queuert.attributes import pairs_of
from queuert.errors import ConfigurationError, InvalidCursorError
from queuert.jobs import ChainRecord, ChainStatus, JobStatus

T = TypeVar("T", covariant=True)

MAX_PAGE = 1000
"""The largest number of entries of a page."""

CLOSED_PORTION = 8 * 1024 * 1024
"""The approximate number of payload bytes in one answer of ``closed_chains``. The driver has them in memory twice."""


@dataclass(frozen=True, slots=True)
class ChainFilter:
    """Selects the chains that match every field that is set. Times are UTC."""

    types: tuple[str, ...] | None = None
    statuses: tuple[ChainStatus, ...] | None = None
    since: datetime | None = None
    """Started at this time or later."""
    before: datetime | None = None
    """Started before this time."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Names and values of attributes. A chain matches if it has all of them."""

    def matches(self, chain: ChainRecord) -> bool:
        """Whether a listing by this filter has the chain, as it was when it was read."""
        return (
            (self.types is None or chain.type in self.types)
            and (self.statuses is None or chain.status in self.statuses)
            and (self.since is None or chain.created_at >= self.since)
            and (self.before is None or chain.created_at < self.before)
            and set(self.attributes) <= set(pairs_of(chain.attributes))
        )


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects the jobs that match every field that is set. Times are UTC."""

    types: tuple[str, ...] | None = None
    statuses: tuple[JobStatus, ...] | None = None
    """As shown: a scheduled job whose time has come counts as ready."""
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an entry in a listing: its time or chain index, and its id. The next page begins after it."""

    key: str
    """The time in ISO format and UTC, or the chain index, or empty in a listing by id alone."""
    id: str

    @classmethod
    def at_time(cls, moment: datetime, id: str) -> Position:
        """Return the position of an entry in a listing by time."""
        return cls(moment.astimezone(UTC).isoformat(), id)

    def encode(self) -> str:
        """Return the position as an opaque cursor."""
        return base64.urlsafe_b64encode(json.dumps([self.key, self.id]).encode()).decode()

    @classmethod
    def decode(cls, cursor: str) -> Position:
        """Return the position of a cursor.

        Raises:
            InvalidCursorError: it is not a cursor of ``encode``.
        """
        try:
            key, id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            (key + id).encode()
            position = cls(key, id)
            # Refuse text that encode() would not write, even if it can be decoded.
            if "\0" in key + id or position.encode() != cursor:
                raise ValueError(cursor)
        except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
            raise InvalidCursorError(cursor) from None
        return position

    @classmethod
    def decode_time(cls, cursor: str) -> tuple[datetime, str]:
        """Return the time and the id of a cursor of a listing by time.

        Raises:
            InvalidCursorError: it is not a cursor of such a listing.
        """
        position = cls.decode(cursor)
        try:
            moment = datetime.fromisoformat(position.key)
            if moment.tzinfo is None or cls.at_time(moment, position.id) != position:
                raise ValueError(cursor)
        except (ValueError, OverflowError):
            raise InvalidCursorError(cursor) from None
        return moment, position.id

    @classmethod
    def decode_index(cls, cursor: str) -> int:
        """Return the chain index of a cursor of a listing of a chain's jobs.

        Raises:
            InvalidCursorError: it is not a cursor of such a listing.
        """
        key = cls.decode(cursor).key
        if not (key.isascii() and key.isdigit() and len(key) < 10 and str(int(key)) == key):
            raise InvalidCursorError(cursor)
        return int(key)

    @classmethod
    def event_key(cls, cursor: str) -> tuple[int, int] | None:
        """Return the ``tx`` and ``seq`` that a cursor of an event log is behind; None if it has none.

        It only compares positions of one log; whether the log goes on from the cursor is checked when it is read.

        On Postgres the cursor has a transaction and a number, elsewhere a number and the id of the log.

        >>> Position.event_key(Position("12", "34:7123456789:1:").encode())
        (12, 34)
        >>> Position.event_key(Position("56", "0123456789abcdef:").encode())
        (56, 56)
        """
        try:
            position = cls.decode(cursor)
            number, parts = int(position.key), position.id.split(":")
            return number, number if len(parts) == 2 else int(parts[0])
        except (InvalidCursorError, ValueError):
            return None

    @classmethod
    def decode_id(cls, cursor: str) -> str:
        """Return the id of a cursor of a listing by ids.

        Raises:
            InvalidCursorError: it is not a cursor of such a listing.
        """
        position = cls.decode(cursor)
        if position.key:
            raise InvalidCursorError(cursor)
        return position.id


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Requests up to ``limit`` entries after ``cursor``, newest first unless ``oldest_first``.

    Raises:
        ConfigurationError: the limit is not an integer between 1 and 1,000.
    """

    limit: int = 50
    cursor: str | None = None
    oldest_first: bool = False

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_PAGE:
            raise ConfigurationError(f"limit must be an integer between 1 and {MAX_PAGE:,}, got {self.limit!r}")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries of a listing, and the cursor of the next page."""

    items: tuple[T, ...]
    next_cursor: str | None
    """The cursor of the next page; None if this is the last."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def page_of(found: Iterable[tuple[T | None, Position]], limit: int) -> Page[T]:
    """Return a page from up to ``limit + 1`` entries. The last one only shows that there is another page.

    None stands for an entry that was deleted after its position was read: the page has one entry less, and the next one
    begins where it would.
    """
    entries = list(found)
    items = tuple(item for item, _ in entries[:limit] if item is not None)
    if len(entries) <= limit:
        return Page(items, None)
    _, last = entries[limit - 1]
    return Page(items, last.encode())
