"""Probes (did it happen at all?) and figures (how long did it take?) of a history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from queuert.testing.chaos import memory_growth
from queuert.testing.chaos.catalogue import CRASHES, WORKERS_KILLED
from queuert.testing.chaos.history import History
from queuert.testing.chaos.takeovers import takeovers, without
from queuert.testing.chaos.workload import LEASE, LIMITS

_REAPS = """CREATE TEMP TABLE IF NOT EXISTS reaps AS
    SELECT job_id, old_attempt AS attempt, at, old_lease FROM c WHERE kind = 'update' AND old_status = 'running'
        AND new_expirations > old_expirations AND new_token IS NULL"""
"""Which leases were reaped: computed once."""
_OUTAGE = 0.5
"""Seconds after an outage in which jobs that waited for its end are still delayed."""


def _kinds(names: frozenset[str]) -> str:
    return "(" + ", ".join(f"'{name}'" for name in sorted(names)) + ")"


_HAPPENED = "SELECT count(*) FROM f WHERE happened = 1"

_PROBES: dict[str, str] = {
    "acknowledged starts": """SELECT count(DISTINCT result_id) FROM a
        WHERE outcome = 'ack' AND how NOT IN ('outside', 'rollback') AND client IS NOT 'steady'""",
    "faults": _HAPPENED,
    "kinds of fault": "SELECT count(DISTINCT kind) FROM f WHERE happened = 1",
    "workers killed": f"{_HAPPENED} AND kind IN {_kinds(WORKERS_KILLED)}",
    "server crashes": f"{_HAPPENED} AND kind IN {_kinds(CRASHES)}",
    "finishes refused by the fence": """SELECT count(*) FROM (
        SELECT job_id, attempt FROM x WHERE mark = 'refused' AND slot IS NOT -2
        UNION SELECT job_id, attempt FROM p WHERE name = 'FinishRejected' AND slot IS NOT -2)""",
    "leases reaped of workers that lived": """SELECT count(*) FROM reaps AS reap WHERE EXISTS (
        SELECT 1 FROM x WHERE x.job_id = reap.job_id AND x.attempt = reap.attempt AND x.at > reap.at
            AND x.slot IS NOT -2)""",
    "commits in doubt that stood": f"{_HAPPENED} AND kind IN ('lose answer to commit', 'kill worker in commit')",
    "commits in doubt that did not": f"{_HAPPENED} AND kind = 'lose commit'",
    "starts in doubt that stood": """SELECT count(DISTINCT id) FROM a
        WHERE outcome = 'unknown' AND how <> 'outside' AND EXISTS (
            SELECT 1 FROM c WHERE c.job_id = a.id AND kind = 'insert' AND c.at <= a.ended)""",
    "starts in doubt that did not": """SELECT count(DISTINCT id) FROM a
        WHERE outcome = 'unknown' AND how <> 'outside' AND id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM c WHERE c.job_id = a.id AND kind = 'insert' AND c.at <= a.ended)""",
    "blockers that closed in overlap": """SELECT count(*) FROM (
        SELECT DISTINCT b1.job_id FROM b AS b1 JOIN b AS b2
            ON b2.job_id = b1.job_id AND b1.chain_id < b2.chain_id
        JOIN c AS one ON one.chain_id = b1.chain_id AND one.new_status = 'completed' AND one.kind = 'update'
        JOIN c AS other ON other.chain_id = b2.chain_id AND other.new_status = 'completed' AND other.kind = 'update'
        WHERE one.tx <> other.tx AND one.began < other.committed AND other.began < one.committed)""",
    "starts of one key within 5 ms": """SELECT count(*) FROM a AS one WHERE one.key <> '' AND EXISTS (
        SELECT 1 FROM a AS other WHERE other.key = one.key AND other.rowid < one.rowid
            AND abs(other.began - one.began) < 0.005)""",
    "listeners restored": "SELECT count(*) FROM p WHERE name = 'ListenerRestored' AND slot >= 0",
    "kinds of poison buried": """SELECT count(DISTINCT substr(f.detail, 1, instr(f.detail, ',') - 1)) FROM f
        JOIN s ON s.id = substr(f.detail, instr(f.detail, 'job ') + 4)
        WHERE f.kind = 'poison' AND f.happened = 1 AND s.status = 'failed'""",
    "poisonous jobs buried": "SELECT count(*) FROM s WHERE type = 'chaos.poison' AND status = 'failed'",
    "attempts of types with limits": "SELECT count(*) FROM c WHERE new_status = 'running' AND type IN ({limited})",
    "claims of limited types while a worker stood still in one": """SELECT count(*) FROM c JOIN f
        ON f.kind = 'freeze worker in claim' AND f.happened = 1 AND c.at BETWEEN f.ended - 1.5 AND f.ended
        WHERE c.kind = 'update' AND c.new_status = 'running' AND c.type IN ({limited})
            AND c.holder NOT LIKE 'chaos-' || substr(f.detail, 9) || '-%'""",
    "finishes that the store refused": """SELECT count(DISTINCT job_id) FROM p WHERE name = 'AttemptRetried'
        AND detail LIKE '%JobIdConflictError%'""",
    "big outputs": "SELECT count(*) FROM s WHERE status = 'completed' AND length(output) > 900000",
    "running jobs held by a caller's transaction": f"{_HAPPENED} AND kind = 'start behind a running job'",
    "retries under a flood of fresh work": f"{_HAPPENED} AND kind = 'flood of fresh work'",
    "retries from outside": "SELECT count(*) FROM a WHERE how = 'outside' AND op = 'retry' AND outcome = 'ack'",
    "webhooks accepted": """SELECT count(DISTINCT delivery_id) FROM w
        WHERE place = 'receiver' AND status BETWEEN 200 AND 299""",
    "webhooks refused": "SELECT count(*) FROM w WHERE status >= 300",
    "chains deleted": "SELECT count(DISTINCT chain_id) FROM c WHERE kind = 'delete'",
}


def probes(history: History) -> dict[str, int]:
    """Count how often each event of interest happened."""
    history.rows(_REAPS)
    limited = ", ".join(f"'{name}'" for name in LIMITS)
    found = {name: int(history.one(query.replace("{limited}", limited))) for name, query in _PROBES.items()}
    found["jobs found by polling alone"] = _found_by_polling(history)
    found[memory_growth.WITNESSES] = memory_growth.witnesses(history)
    return found


def _found_by_polling(history: History) -> int:
    """Count the attempts that a worker began while its listener was disconnected."""
    deaf: set[int] = set()
    found = 0
    rows = history.rows(
        """SELECT pid, name FROM p WHERE name IN ('ListenerLost', 'ListenerRestored', 'AttemptStarted')
           AND slot >= 0 ORDER BY rowid"""
    )
    for pid, name in rows:
        if name == "ListenerLost":
            deaf.add(pid)
        elif name == "ListenerRestored":
            deaf.discard(pid)
        else:
            found += pid in deaf
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(history: History) -> dict[str, Any]:
    """Return durations and costs; in seconds."""
    starts = int(history.one("SELECT count(*) FROM x WHERE mark LIKE '%began'"))
    taken = takeovers(history)
    again = int(history.one("SELECT count(*) FROM x WHERE mark LIKE '%began' AND attempt > 1"))
    return {
        "jobs": int(history.one("SELECT count(*) FROM s")),
        "jobs completed": int(history.one("SELECT count(*) FROM s WHERE status IN ('completed', 'continued')")),
        "calls in doubt": int(history.one("SELECT count(*) FROM a WHERE outcome = 'unknown'")),
        "most attempts": history.one("SELECT max(attempt) FROM s"),
        "handlers begun": starts,
        "handlers begun again": again,
        "share begun again": round(again / starts, 4) if starts else 0.0,
        "lease": LEASE.seconds,
        "reaped after the end of the lease": spread(_reaped_late(history)),
        "take-over after the end of the lease": spread(sorted(one.waited for one in taken)),
        "of that, while somebody could": spread(sorted(one.somebody for one in taken)),
        "take-over of the first in line": spread(sorted(one.waited for one in taken if one.first)),
        "of that, while somebody could, too": spread(sorted(one.somebody for one in taken if one.first)),
        "take-overs within a second": sum(one.waited <= 1.0 for one in taken),
        "later, but not while somebody could": sum(one.waited > 1.0 >= one.somebody for one in taken),
        "later, though somebody could": sum(one.somebody > 1.0 for one in taken),
        "take-over after a kill": spread(_after_kills(history)),
        "first completion after the server serves again": spread(recoveries(history)),
        "continuation begun after it was written": spread(_continued(history)),
        **memory_growth.reported(history),
    }


def measures(history: History, drain_seconds: float) -> dict[str, float]:
    """Return the times that profiles limit; 0 for those without data."""
    taken = sorted(one.somebody for one in takeovers(history) if one.first)
    return {
        "take-over of the first in line while somebody could, 99 of 100": _at(taken, 0.99),
        "first completion after the server serves again, 95 of 100": _at(recoveries(history), 0.95),
        "drain": round(drain_seconds, 3),
        **memory_growth.growth(history),
    }


def _reaped_late(history: History) -> list[float]:
    """Times from the end of a lease to its reaper, if the store was available meanwhile; the claim also needs a free
    worker."""
    history.rows(_REAPS)
    outages = _outages(history)
    found = history.rows("SELECT old_lease, at FROM reaps")
    return sorted(at - end for end, at in found if not _meets(outages, end, at))


def _after_kills(history: History) -> list[float]:
    """Times from a kill to the next claim of each job that the worker held, if the store was available meanwhile."""
    history.rows(_REAPS)
    killed = (
        f"SELECT CAST(substr(detail, 9) AS INTEGER), began FROM f WHERE kind IN {_kinds(WORKERS_KILLED)} AND happened"
    )
    began: dict[int, float] = {int(pid): float(at) for pid, at in history.rows(killed)}
    rows = history.rows(
        """SELECT CAST(substr(held.holder, 7) AS INTEGER), reap.at, claim.at FROM reaps AS reap
            JOIN c AS held ON held.job_id = reap.job_id AND held.new_attempt = reap.attempt
                AND held.new_status = 'running' AND held.kind = 'update'
            JOIN c AS claim ON claim.job_id = reap.job_id AND claim.kind = 'update'
                AND claim.new_status = 'running' AND claim.new_attempt = reap.attempt + 1"""
    )
    outages = _outages(history)
    pairs = [(began[pid], claimed) for pid, reaped, claimed in rows if pid in began and reaped >= began[pid]]
    return sorted(claimed - at for at, claimed in pairs if not _meets(outages, at, claimed))


def _continued(history: History) -> list[float]:
    """Times from the write of a continuation, due at once, to its first claim, if the store was available."""
    rows = history.rows(
        """SELECT born.at, min(claim.at) FROM c AS born JOIN c AS claim ON claim.job_id = born.job_id
               AND claim.kind = 'update' AND claim.new_status = 'running'
           WHERE born.kind = 'insert' AND born.chain_index > 0 AND born.new_status = 'ready' GROUP BY born.number"""
    )
    outages = _outages(history)
    return sorted(claimed - at for at, claimed in rows if not _meets(outages, at, claimed))


PROMPTLY = 2.0


def recoveries(history: History) -> list[float]:
    """Times from the moment that the server was available again to the first completion, without the time in which it
    was broken, locked or paused again.

    If the server went down again within two seconds, before a completion, only the next such moment counts. A moment at
    which no worker had started yet does not count either.
    """
    found = history.rows(
        f"""WITH served AS (
                SELECT ended AS at,
                    (SELECT min(began) FROM outages AS next WHERE down AND next.began >= one.ended) AS gone,
                    (SELECT min(c.at) FROM c WHERE c.kind = 'update' AND c.new_status IN ('completed', 'continued')
                        AND c.at >= one.ended AND c.type NOT LIKE 'chaos.steady%') AS done
                FROM outages AS one WHERE down)
            SELECT at, done FROM served
            WHERE done IS NOT NULL
                AND at >= coalesce((SELECT min(at) FROM p WHERE name = 'WorkerStarted' AND slot IS NOT -2), 0)
                AND NOT (gone IS NOT NULL AND gone - at < {PROMPTLY} AND done > gone)"""
    )
    broken = [(began, ended) for began, ended in history.rows("SELECT began, ended FROM outages")]
    return sorted(sum(end - begin for begin, end in without((at, done), broken)) for at, done in found)


def _outages(history: History) -> list[tuple[float, float]]:
    """When the store was broken, or locked, or could not be reached by workers."""
    return [(began, ended + _OUTAGE) for began, ended in history.rows("SELECT began, ended FROM outages")]


def _meets(outages: Sequence[tuple[float, float]], begin: float, end: float) -> bool:
    return any(began <= end and begin <= ended for began, ended in outages)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, median, 95th and 99th percentile, and maximum."""
    if not values:
        return {"count": 0}
    of_100 = {f"p{share}": _at(values, share / 100) for share in (50, 95, 99)}
    return {"count": len(values), **of_100, "max": round(values[-1], 3)}


def _at(values: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that this share of them does not exceed."""
    return round(values[max(0, math.ceil(share * len(values)) - 1)], 3) if values else 0.0
