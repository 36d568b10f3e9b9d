"""How long a job waits for its next attempt if its worker has died, frozen, or lost its connection.

Each take-over has two times: from the end of the lease to the next claim, and the part of it in which some worker could
have claimed the job. One rule computes the second for every take-over: the clock runs while at least one worker is
available. A worker is available from the moment that it reported its start until its end, while it is neither frozen
nor disconnected by a fault of the network or of its own event loop, and holds fewer jobs than it has slots; and while
the store is not broken, and no process that is frozen or whose event loop is blocked has the write lock of a file.
After such an interruption the worker has a second to connect again. Jobs with an attempt that failed by its own fault
are left out, because they give way to all other jobs.

A free slot takes the best job, so other jobs wait for as long as there are better ones. Jobs with priority over all
others, of which a run has some hundred, show how long a take-over itself takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from queuert.testing.chaos.history import History

PLACES = 8
"""The number of slots of each worker of a run."""
RECONNECTING = 1.0

Span = tuple[float, float]

_ENDLESS = 1e12


@dataclass
class Takeover:
    """A lease that expired, and the next claim of its job."""

    expired: float
    claimed: float
    first: bool
    """Whether the job has priority over all others: jobs that the run itself starts do."""
    somebody: float = 0.0
    """Seconds between the two in which some worker could have claimed the job."""

    @property
    def waited(self) -> float:
        """Seconds between the two."""
        return self.claimed - self.expired


@dataclass
class _Life:
    """One worker process."""

    slot: int
    began: float
    ended: float = _ENDLESS
    away: list[Span] = field(default_factory=list)


def takeovers(history: History) -> list[Takeover]:
    """Return all take-overs of jobs that are retried at once and have no penalty, in the order of their claims."""
    found = [Takeover(*row) for row in history.rows(_TAKEN_OVER)]
    free = _merged(span for life in _lives(history).values() for span in without((life.began, life.ended), life.away))
    begins, ends = [begin for begin, _ in free], [end for _, end in free]
    for one in found:
        first, last = bisect_left(ends, one.expired), bisect_right(begins, one.claimed)
        one.somebody = sum(
            max(0.0, min(one.claimed, ends[at]) - max(one.expired, begins[at])) for at in range(first, last)
        )
    return found


_TAKEN_OVER = """
SELECT reap.old_lease, claim.at, claim.job_id LIKE 'o%' FROM c AS reap JOIN c AS claim ON claim.job_id = reap.job_id
    AND claim.kind = 'update' AND claim.new_status = 'running' AND claim.new_attempt = reap.old_attempt + 1
    AND claim.number = (SELECT min(number) FROM c AS next WHERE next.job_id = reap.job_id AND next.number > reap.number)
WHERE reap.kind = 'update' AND reap.old_status = 'running' AND reap.new_expirations > reap.old_expirations
    AND reap.new_token IS NULL AND reap.new_status = 'ready'
    AND reap.old_attempt - reap.old_uncounted <= reap.new_expirations
    AND claim.type IN ('chaos.effect', 'chaos.threaded', 'chaos.plain', 'chaos.blocking')
ORDER BY claim.at"""


def _lives(history: History) -> dict[int, _Life]:
    """Return every worker, and the times in which it could not claim."""
    started = "SELECT pid, slot, min(at) FROM p WHERE name = 'WorkerStarted' AND slot >= 0 GROUP BY pid"
    lives = {pid: _Life(slot, at) for pid, slot, at in history.rows(started)}
    for pid, at in history.rows("SELECT pid, at FROM ends UNION ALL SELECT pid, began FROM stops"):
        if pid in lives:
            lives[pid].ended = min(lives[pid].ended, at)
    outages = _spans(history.rows("SELECT began, ended FROM outages"))
    for life in lives.values():
        life.away += outages
        life.away += _spans(history.rows("SELECT began, ended FROM away WHERE slot = ?", (life.slot,)))
    blocked = list(_blocked(history))
    for pid, span in (*blocked, *_full(history)):
        if pid in lives:
            lives[pid].away.append(span)
    nobody_writes = list(_held_up(history, blocked))
    for life in lives.values():
        life.away += nobody_writes
    return lives


def _spans(rows: Iterable[Iterable[float]]) -> list[Span]:
    """Extend each time by the time that it takes to connect again."""
    return [(began, ended + RECONNECTING) for began, ended in rows]


def _blocked(history: History) -> Iterator[tuple[int, Span]]:
    """When the event loop of each worker was blocked."""
    blocked: dict[tuple[str, int], tuple[int, float]] = {}
    query = "SELECT pid, job_id, attempt, mark, at FROM x WHERE mark IN ('blockedbegan', 'blockedended') ORDER BY at"
    for pid, job_id, attempt, mark, at in history.rows(query):
        if mark == "blockedbegan":
            blocked[job_id, attempt] = pid, at
        elif (job_id, attempt) in blocked:
            yield pid, (blocked.pop((job_id, attempt))[1], at)
    for pid, at in blocked.values():
        yield pid, (at, _ENDLESS)


def _held_up(history: History, blocked: Iterable[tuple[int, Span]]) -> Iterator[Span]:
    """When a worker with a blocked event loop had the only write lock of a file, so that no other process could
    write."""
    holds: dict[int, list[Span]] = defaultdict(list)
    for pid, began, ended in history.rows("SELECT pid, began, coalesce(ended, began) FROM holds"):
        holds[pid].append((began, ended))
    for pid, (begin, end) in blocked:
        yield from ((max(begin, first), min(end, last)) for first, last in holds[pid] if first < end and begin < last)


def _full(history: History) -> Iterator[tuple[int, Span]]:
    """When all slots of each worker were occupied: by leases in the store, and by handlers that continued without a
    lease."""
    taken: dict[int, dict[tuple[str, int], int]] = defaultdict(dict)
    since: dict[int, float] = {}
    for at, pid, job_id, attempt, step in history.rows(_PLACES_TAKEN):
        places = taken[pid]
        places[job_id, attempt] = places.get((job_id, attempt), 0) + step
        if places[job_id, attempt] <= 0:
            del places[job_id, attempt]
        if len(places) >= PLACES:
            since.setdefault(pid, at)
        elif pid in since:
            yield pid, (since.pop(pid), at)
    for pid, at in since.items():
        yield pid, (at, _ENDLESS)


_PLACES_TAKEN = """
SELECT at, CAST(substr(holder, 7) AS INTEGER), job_id, new_attempt, 1 FROM c
    WHERE kind <> 'insert' AND holder LIKE 'chaos-%' AND new_status = 'running' AND old_status <> 'running'
UNION ALL SELECT at, CAST(substr(holder, 7) AS INTEGER), job_id, old_attempt, -1 FROM c
    WHERE kind <> 'insert' AND holder LIKE 'chaos-%' AND old_status = 'running' AND new_status IS NOT 'running'
UNION ALL SELECT at, pid, job_id, attempt, CASE WHEN mark = 'began' THEN 1 ELSE -1 END FROM x
    WHERE mark IN ('began', 'ended', 'refused', 'broke')
ORDER BY 1"""


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def without(whole: Span, taken: Iterable[Span]) -> Iterator[Span]:
    """Return the parts of a span that none of the others covers."""
    begin, last = whole
    for first, end in _merged(taken):
        if first > begin:
            yield begin, min(first, last)
        begin = max(begin, end)
        if begin >= last:
            return
    if begin < last:
        yield begin, last
