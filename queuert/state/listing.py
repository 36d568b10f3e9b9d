"""What is listed, page by page: values of the contract."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from queuert.errors import InvalidCursorError
from queuert.jobs import ChainStatus, JobStatus

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class ChainFilter:
    """Which chains: all that fit every field that is set. Times are UTC."""

    types: tuple[str, ...] | None = None
    statuses: tuple[ChainStatus, ...] | None = None
    since: datetime | None = None
    """Started then or later."""
    before: datetime | None = None
    """Started earlier."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: all that fit every field that is set. Times are UTC."""

    types: tuple[str, ...] | None = None
    statuses: tuple[JobStatus, ...] | None = None
    """As stored: a scheduled job whose time has come counts as scheduled until it is claimed."""
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a listing: after (or, going back, before) the entry of this time, or chain index, and id."""

    key: str
    """ISO time, or the chain index."""
    id: str

    def encode(self) -> str:
        """The opaque cursor."""
        return base64.urlsafe_b64encode(json.dumps([self.key, self.id]).encode()).decode()

    @classmethod
    def decode(cls, cursor: str) -> Position:
        """The place that a cursor stands for.

        Raises:
            InvalidCursorError: it is not one of ours.
        """
        try:
            key, id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
            raise InvalidCursorError(cursor) from None
        if not (isinstance(key, str) and isinstance(id, str)) or "\0" in key + id:
            raise InvalidCursorError(cursor)
        return cls(key, id)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Up to ``limit`` entries after ``cursor``, newest first unless ``oldest_first``."""

    limit: int = 50
    cursor: str | None = None
    oldest_first: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries of a listing, and where the next begin."""

    items: tuple[T, ...]
    next_cursor: str | None
    """None after the last."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def page_of(found: Iterable[tuple[T, Position]], limit: int) -> Page[T]:
    """The page that ``limit + 1`` entries make: the last of them only says that there is more."""
    entries = list(found)
    items = tuple(item for item, _ in entries[:limit])
    return Page(items, entries[limit - 1][1].encode() if len(entries) > limit else None)
