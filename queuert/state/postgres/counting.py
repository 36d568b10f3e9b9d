"""Counts: what was counted up to a cap, and the planner's estimates beyond it, as numbers by type and status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from queuert.jobs import JobStatus
from queuert.state.adapter import TypeCount
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row

Stored: TypeAlias = tuple[str, JobStatus]
"""A type and a status as stored."""

_BY_AGE = (JobStatus.SCHEDULED,)


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries of one type and status, up to one above the cap."""

    type: str
    status: JobStatus
    due: bool
    """Scheduled ones whose time has come."""
    number: int
    oldest_seconds: float | None

    @property
    def stored(self) -> Stored:
        """What an estimate is asked for."""
        return self.type, self.status

    @property
    def shown(self) -> JobStatus:
        """The status under which they are counted."""
        return JobStatus.READY if self.due else self.status


def parameters(types: Sequence[str] | None, cap: int) -> Parameters:
    """Parameters of ``counts``."""
    asked = None if types is None else list(dict.fromkeys(types))
    return {"types": asked, "statuses": [status.value for status in JobStatus if status not in _BY_AGE], "cap": cap}


def counted(row: Row) -> Counted:
    """A row of ``counts``."""
    return Counted(row[0], JobStatus(row[1]), row[2], row[3], None if row[4] is None else max(0.0, row[4]))


def too_many(found: Sequence[Counted], cap: int) -> list[Stored]:
    """What there is more of than was counted."""
    return list(dict.fromkeys(one.stored for one in found if one.number > cap))


def estimated_rows(row: Row) -> int:
    """The row of ``estimate``: a plan."""
    plan: Mapping[str, Any] = row[0][0]["Plan"]
    return int(plan["Plan Rows"])


def type_counts(found: Sequence[Counted], estimates: Mapping[Stored, int], cap: int) -> list[TypeCount]:
    """Numbers by type and shown status, in that order."""
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
            # The estimate is of scheduled jobs, due or not: it cannot be split.
            yield one, one.number
        else:
            # There are no fewer than were counted.
            yield one, max(one.number, estimates[one.stored] - sum(other.number for other in others))


def _oldest(some: Sequence[Counted]) -> float | None:
    ages = [one.oldest_seconds for one in some]
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None
