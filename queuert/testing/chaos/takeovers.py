"""How long a job waits for its next attempt when its worker has died, frozen, or been cut off.

The time from the end of a lease to the next claim is told as it was. Beside it stands the time in which somebody could
have claimed, by one rule and for every take-over: the clock runs while at least one worker was there for it. A worker
is there for it from the moment that it told it had started to its end, while it is not frozen, nor cut off by a fault
of the network or of its own event loop, and holds fewer jobs than it has places; and while the store is not broken, nor
the write lock of a file with somebody who is frozen or whose event loop is blocked. After a break of either it has a
second to connect anew. Left out are jobs of which an attempt failed by their own
doing, since they give way to all others while there are any.

A place that becomes free goes to the best job, so others wait for as long as there are better ones. Those that nothing
goes before, of which a run has some hundred, show what a take-over takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from queuert.testing.chaos.history import History

PLACES = 8
"""Handlers at once of each worker of a run."""
RECONNECTING = 1.0

Span = tuple[float, float]

_ENDLESS = 1e12


@dataclass
class Takeover:
    """A lease that expired, and the next claim of its job."""

    expired: float
    claimed: float
    first: bool
    """Whether it goes before all others: jobs that the conductor starts do."""
    somebody: float = 0.0
    """Seconds between the two in which somebody could have claimed it."""

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
    """All take-overs of jobs that are tried again at once and give way to nobody, in the order of their claims."""
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
    """Every worker, and when it could not have claimed."""
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
    """With the time that it takes to connect anew."""
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
    """When a worker whose event loop was blocked had the one write lock of a file, so that nobody else could write."""
    holds: dict[int, list[Span]] = defaultdict(list)
    for pid, began, ended in history.rows("SELECT pid, began, coalesce(ended, began) FROM holds"):
        holds[pid].append((began, ended))
    for pid, (begin, end) in blocked:
        yield from ((max(begin, first), min(end, last)) for first, last in holds[pid] if first < end and begin < last)


def _full(history: History) -> Iterator[tuple[int, Span]]:
    """When each worker had all its places taken: by leases in the store, and by handlers that ran on without one."""
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
    """What is left of a span, without those of others."""
    begin, last = whole
    for first, end in _merged(taken):
        if first > begin:
            yield begin, min(first, last)
        begin = max(begin, end)
        if begin >= last:
            return
    if begin < last:
        yield begin, last
