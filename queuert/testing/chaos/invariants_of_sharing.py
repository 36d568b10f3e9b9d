"""The invariants of what jobs share: limits, rows that others lock, and the order of claims; see :mod:`.invariants`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from queuert.testing.chaos.history import History
from queuert.testing.chaos.invariants import invariant
from queuert.testing.chaos.workload import LEASE, LIMITS

_HELD = re.compile(r"job (\S+) from ([\d.]+) to ([\d.]+)")
_SLACK = 0.002
"""The most seconds between the two times that a store reads in one claim."""


class _Step(NamedTuple):
    """A job of a limited type begins to run, or ends."""

    at: float
    """When an attempt began, computed from its lease: the store uses the same time for the lease and for the rate."""
    step: int
    job_id: str
    key: str


@invariant("I31", "limits of a job type hold over all workers")
def limits_hold(history: History) -> Iterator[str]:
    """Report more running jobs of a type, or of one of its keys, than its limits allow, and more starts than its rate
    allows."""
    for type, limits in LIMITS.items():
        steps = list(_steps(history, type))
        if limits.concurrency is not None:
            yield from _crowded(type, steps, limits.concurrency)
        if limits.per_key is not None:
            for key, own in _by_key(steps).items():
                if key:
                    yield from _crowded(f"{type} with the key {key}", own, limits.per_key)
        if limits.rate is not None:
            for own in _by_key(steps).values():
                yield from _hurried(type, own, limits.rate.count, limits.rate.seconds)


def _steps(history: History, type: str) -> Iterator[_Step]:
    """The events in the order of the store. On Postgres this is the order of commits, and a finish that a claim saw is
    earlier."""
    keys = {str(row[0]): str(row[1]) for row in history.rows("SELECT id, limit_key FROM s WHERE limit_key IS NOT NULL")}
    order = "coalesce(committed, at), step" if history.store == "postgres" else "number"
    rows = history.rows(
        f"""SELECT coalesce(new_lease - :lease, at), step, job_id FROM (
                SELECT *, CASE WHEN new_status = 'running' THEN 1 ELSE -1 END AS step FROM c WHERE type = :type
                    AND (old_status = 'running') <> (coalesce(new_status, '') = 'running') AND kind <> 'insert')
            ORDER BY {order}""",
        {"type": type, "lease": LEASE.seconds},
    )
    for at, step, job_id in rows:
        yield _Step(at, step, job_id, keys.get(job_id, ""))


def _by_key(steps: Iterable[_Step]) -> dict[str, list[_Step]]:
    found: dict[str, list[_Step]] = defaultdict(list)
    for one in steps:
        found[one.key].append(one)
    return found


def _crowded(what: str, steps: Iterable[_Step], most: int) -> Iterator[str]:
    running = 0
    for one in steps:
        running += one.step
        if running > most:
            yield f"{one.job_id}: {running} jobs of {what} ran at once, of {most}"


def _hurried(type: str, steps: Iterable[_Step], count: int, seconds: float) -> Iterator[str]:
    begun = sorted(one for one in steps if one.step > 0)
    for first, last in zip(begun, begun[count:], strict=False):
        if last.at - first.at < seconds - _SLACK:
            yield f"{last.job_id}: {count + 1} jobs of {type} began within {last.at - first.at:.3f} s, of {count}"


@invariant("I32", "a caller's transaction behind a running job costs it no attempt")
def held_attempts_live(history: History) -> Iterator[str]:
    """Report if more than half of the leases of live workers were reaped while another transaction had their rows
    locked.

    A lease of a second may expire on a crowded machine without any fault, but not most of them.
    """
    held, lost = 0, []
    for (detail,) in history.rows("SELECT detail FROM f WHERE kind = 'start behind a running job' AND happened = 1"):
        found = _HELD.match(str(detail))
        if found is not None:
            held += 1
            lost += history.rows(
                """SELECT job_id FROM c WHERE job_id = ? AND at BETWEEN ? AND ? AND kind = 'update'
                       AND old_status = 'running' AND new_expirations > old_expirations AND NOT EXISTS (
                           SELECT 1 FROM ends WHERE c.holder LIKE 'chaos-' || pid || '-%' AND ends.at < c.at)""",
                (found[1], float(found[2]), float(found[3])),
            )
    if len(lost) * 2 > held:
        for (job_id,) in lost:
            yield f"{job_id} lost its lease to a transaction that started a chain behind it"


@invariant("I33", "a job that failed gets its turn, however much fresh work there is")
def nobody_starves(history: History) -> Iterator[str]:
    """Report if more than half of the second attempts did not begin for as long as there was other work."""
    rows = history.rows("SELECT detail FROM f WHERE kind = 'flood of fresh work' AND happened = 1")
    starved = [str(detail) for (detail,) in rows if "starved" in str(detail)]
    if len(starved) * 2 > len(rows):
        yield from starved
