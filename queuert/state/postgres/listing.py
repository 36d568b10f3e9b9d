"""Lists and counts: parameters of the statements, and their rows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.limits import Limits, Rate
from queuert.state import records
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.types import HeldJob, TypeCount, WaitFacts

Stored: TypeAlias = tuple[str, JobStatus]
"""A type and a status as stored."""

_BY_AGE = (JobStatus.SCHEDULED,)


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of jobs of one type and status, up to one above the cap."""

    type: str
    status: JobStatus
    due: bool
    """Whether these are scheduled jobs whose time has come."""
    number: int
    oldest_seconds: float | None

    @property
    def stored(self) -> Stored:
        """The type and status that an estimate is made for."""
        return self.type, self.status

    @property
    def shown(self) -> JobStatus:
        """The status under which they are counted."""
        return JobStatus.READY if self.due else self.status


def count_parameters(types: Sequence[str] | None, cap: int) -> Parameters:
    """Return the parameters of ``count_jobs``."""
    params = None if types is None else list(dict.fromkeys(types))
    return {"types": params, "statuses": [status.value for status in JobStatus if status not in _BY_AGE], "cap": cap}


def counted(row: Row) -> Counted:
    """Decode a row of ``count_jobs``."""
    type, status, due, number, oldest_seconds = row
    return Counted(type, JobStatus(status), due, number, None if oldest_seconds is None else max(0.0, oldest_seconds))


def too_many(found: Sequence[Counted], cap: int) -> list[Stored]:
    """Returns the types and statuses that have more jobs than were counted."""
    return list(dict.fromkeys(one.stored for one in found if one.number > cap))


AT_ONCE = 100
"""How many estimates one statement asks for."""


def estimates(statement: bytes, stored: Sequence[Stored]) -> tuple[bytes, Parameters]:
    """Return the statement that asks for the estimates of these, and its parameters; the server does not run it.

    Args:
        statement: ``estimate``.
        stored: types and statuses.
    """
    parts: list[bytes] = []
    values: Parameters = {}
    bare = statement[statement.index(b"SELECT") :]
    for number, (type, status) in enumerate(stored):
        suffix = b"%d)s" % number
        parts.append(bare.replace(b"%(type)s", b"%(type" + suffix).replace(b"%(status)s", b"%(status" + suffix))
        values |= {f"type{number}": type, f"status{number}": status.value}
    return b"EXPLAIN (FORMAT JSON) " + b" UNION ALL ".join(parts), values


def estimated_rows(row: Row, stored: Sequence[Stored]) -> dict[Stored, int]:
    """Return the numbers of rows in the plan of ``estimates``."""
    [[explained]] = row
    plan: Mapping[str, Any] = explained["Plan"]
    plans = [plan] if len(stored) == 1 else plan["Plans"]
    return {one: int(part["Plan Rows"]) for one, part in zip(stored, plans, strict=True)}


def type_counts(found: Sequence[Counted], estimates: Mapping[Stored, int], cap: int) -> list[TypeCount]:
    """Returns the counts by type and shown status, in that order."""
    parts: dict[Stored, list[tuple[Counted, int]]] = {}
    for one, number in _numbers(found, estimates, cap):
        parts.setdefault((one.type, one.shown), []).append((one, number))
    return [
        TypeCount(
            type,
            status,
            count=sum(number for _, number in some),
            oldest_seconds=_oldest([one for one, _ in some]),
            estimated=any(one.number > cap for one, _ in some),
        )
        for (type, status), some in sorted(parts.items())
    ]


def _numbers(found: Sequence[Counted], estimates: Mapping[Stored, int], cap: int) -> Iterator[tuple[Counted, int]]:
    for one in found:
        if one.number <= cap:
            yield one, one.number
            continue
        others = [other for other in found if other.stored == one.stored and other.due != one.due]
        if one.due and any(other.number > cap for other in others):
            # The estimate covers all scheduled jobs, due or not, and cannot be split.
            yield one, one.number
        else:
            # There are at least as many as were counted.
            yield one, max(one.number, estimates[one.stored] - sum(other.number for other in others))


def _oldest(some: Sequence[Counted]) -> float | None:
    ages = [one.oldest_seconds for one in some]
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None


_FIRST, _LAST = "-infinity", "infinity"
_MOST_JOBS = 2**31 - 1


def wait_facts(row: Row) -> WaitFacts:
    """Decode the row of ``wait_facts``."""
    now, concurrency, per_key, count, seconds, fair, ordered, *others, held, held_of_key, kept = row
    limits = None
    if fair is not None:
        rate = None if count is None else Rate(count, per=seconds)
        limits = Limits(concurrency, None if ordered else per_key, rate, fair, ordered)
    return replace(
        WaitFacts(now, limits, *others),
        held=held_jobs(held),
        held_of_key=held_jobs(held_of_key),
        kept_events=tuple(sorted(kept or ())),
    )


def held_jobs(found: Sequence[Sequence[str]] | None) -> tuple[HeldJob, ...]:
    """Decode ids and holders."""
    return tuple(HeldJob(*one) for one in found or ())


def by_time(filter: ChainFilter | JobFilter, page: PageRequest) -> Parameters:
    """Return the parameters of ``list_chains`` and ``list_jobs``.

    Raises:
        InvalidCursorError: the cursor is not one of these listings.
    """
    known: type[ChainStatus | JobStatus] = ChainStatus if isinstance(filter, ChainFilter) else JobStatus
    statuses = known if filter.statuses is None else filter.statuses
    # Ids are not empty, so that this bound is before all entries of its time.
    low = None if filter.since is None else (filter.since, "")
    high = None if filter.before is None else (filter.before, "")
    if page.cursor is not None:
        position = Position.decode_time(page.cursor)
        if page.oldest_first:
            low = position if low is None else max(low, position)
        else:
            high = position if high is None else min(high, position)
    return {
        "types": None if filter.types is None else list(dict.fromkeys(filter.types)),
        "statuses": list(dict.fromkeys(str(status) for status in statuses)),
        **_bound("low", low, _FIRST),
        **_bound("high", high, _LAST),
        "limit": page.limit + 1,
    }


def attribute_pairs(filter: ChainFilter) -> Parameters:
    """Return the parameters that ``list_chains_by_attributes`` has besides those of ``list_chains``."""
    pairs = list(dict.fromkeys(filter.attributes))
    return {"names": [name for name, _ in pairs], "values": [value for _, value in pairs]}


def _bound(name: str, position: tuple[datetime, str] | None, default: str) -> Parameters:
    if position is None:
        return {name: default, f"{name}_id": ""}
    moment, id = position
    return {name: moment.isoformat(), f"{name}_id": id}


def by_index(chain_id: str, page: PageRequest) -> Parameters:
    """Return the parameters of ``list_chain_jobs``.

    Raises:
        InvalidCursorError: the cursor is not one of this listing.
    """
    low, high = -1, _MOST_JOBS
    if page.cursor is not None:
        position = Position.decode_index(page.cursor)
        low, high = (position, high) if page.oldest_first else (low, position)
    return {"chain": chain_id, "low": low, "high": high, "limit": page.limit + 1}


def by_id(chain_id: str, page: PageRequest) -> Parameters:
    """Return the parameters of ``list_dependents``.

    Raises:
        InvalidCursorError: the cursor is not one of this listing.
    """
    low, high_chain, high = "", f"{chain_id}\x01", ""
    if page.cursor is not None:
        position = Position.decode_id(page.cursor)
        low, high_chain, high = (position, high_chain, high) if page.oldest_first else (low, chain_id, position)
    return {"chain": chain_id, "low": low, "high_chain": high_chain, "high": high, "limit": page.limit + 1}


def chains(found: Sequence[Row], limit: int) -> Page[ChainRecord]:
    """Make a page of the rows of ``list_chains``."""
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in map(records.chain, found)), limit)


def jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """Make a page of the rows of ``list_jobs``."""
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in map(records.job, found)), limit)


def chain_jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """Make a page of the rows of ``list_chain_jobs``."""
    return page_of(((one, Position(str(one.chain_index), one.id)) for one in map(records.job, found)), limit)


def blocked_jobs(found: Sequence[Row], limit: int) -> Page[Job]:
    """Make a page of the rows of ``list_dependents``."""
    return page_of(((one, Position("", one.id)) for one in map(records.job, found)), limit)
