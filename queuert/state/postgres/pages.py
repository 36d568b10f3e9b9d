"""Pages: parameters and rows of their statements, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.postgres import rows
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row

_FIRST, _LAST = "-infinity", "infinity"
_MOST_JOBS = 2**31 - 1


@cache
def in_order(statement: bytes, oldest_first: bool) -> bytes:
    """The statement of a page in the order asked for. They are written newest first."""
    return statement.replace(b" DESC", b"") if oldest_first else statement


def by_time(filter: ChainFilter | JobFilter, page: PageRequest) -> Parameters:
    """Parameters of ``list_chains`` and ``list_jobs``.

    Raises:
        InvalidCursorError: the cursor is not one of theirs.
    """
    known: type[ChainStatus | JobStatus] = ChainStatus if isinstance(filter, ChainFilter) else JobStatus
    statuses = known if filter.statuses is None else filter.statuses
    # No id is empty, so that these come before all entries of their time.
    low = None if filter.since is None else (filter.since, "")
    high = None if filter.before is None else (filter.before, "")
    if page.cursor is not None:
        place = Position.decode_time(page.cursor)
        if page.oldest_first:
            low = place if low is None else max(low, place)
        else:
            high = place if high is None else min(high, place)
    return {
        "types": None if filter.types is None else list(dict.fromkeys(filter.types)),
        "statuses": list(dict.fromkeys(str(status) for status in statuses)),
        **_bound("low", low, _FIRST),
        **_bound("high", high, _LAST),
        "limit": page.limit + 1,
    }


def _bound(name: str, place: tuple[datetime, str] | None, default: str) -> Parameters:
    moment, id = (default, "") if place is None else (place[0].isoformat(), place[1])
    return {name: moment, f"{name}_id": id}


def by_index(chain_id: str, page: PageRequest) -> Parameters:
    """Parameters of ``list_chain_jobs``.

    Raises:
        InvalidCursorError: the cursor is not one of its.
    """
    low, high = -1, _MOST_JOBS
    if page.cursor is not None:
        place = Position.decode_index(page.cursor)
        low, high = (place, high) if page.oldest_first else (low, place)
    return {"chain": chain_id, "low": low, "high": high, "limit": page.limit + 1}


def by_id(chain_id: str, page: PageRequest) -> Parameters:
    """Parameters of ``list_blocked_jobs``.

    Raises:
        InvalidCursorError: the cursor is not one of its.
    """
    low, high_chain, high = "", f"{chain_id}\x01", ""
    if page.cursor is not None:
        place = Position.decode_id(page.cursor)
        low, high_chain, high = (place, high_chain, high) if page.oldest_first else (low, chain_id, place)
    return {"chain": chain_id, "low": low, "high_chain": high_chain, "high": high, "limit": page.limit + 1}


def chains(found: Sequence[Row], limit: int) -> Page[ChainRecord]:
    """The page that rows of ``list_chains`` make."""
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in map(rows.chain, found)), limit)


def jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """The page that rows of ``list_jobs`` make."""
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in map(rows.job, found)), limit)


def chain_jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """The page that rows of ``list_chain_jobs`` make."""
    return page_of(((one, Position(str(one.chain_index), one.id)) for one in map(rows.job, found)), limit)


def blocked_jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """The page that rows of ``list_blocked_jobs`` make."""
    return page_of(((one, Position("", one.id)) for one in map(rows.job, found)), limit)
