"""Probes (did it happen at all?) and figures (how long did it take?) of a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.testing.chaos.catalogue import CRASHES, WORKERS_KILLED
from queuert.testing.chaos.history import History
from queuert.testing.chaos.workload import LEASE

_REAPS = """CREATE TEMP TABLE IF NOT EXISTS reaps AS
    SELECT job_id, old_attempt AS attempt, at, old_lease FROM c WHERE kind = 'update' AND old_status = 'running'
        AND new_expirations > old_expirations AND new_token IS NULL"""
"""Leases that were reaped: looked for once."""
_OUTAGE = 0.5
"""Seconds after an outage in which what waited for its end is still under way."""


def _kinds(names: frozenset[str]) -> str:
    return "(" + ", ".join(f"'{name}'" for name in sorted(names)) + ")"


_HAPPENED = "SELECT count(*) FROM f WHERE happened = 1"

_PROBES: dict[str, str] = {
    "acknowledged starts": """SELECT count(DISTINCT result_id) FROM a
        WHERE outcome = 'ack' AND how NOT IN ('outside', 'rollback')""",
    "faults": _HAPPENED,
    "kinds of fault": "SELECT count(DISTINCT kind) FROM f WHERE happened = 1",
    "workers killed": f"{_HAPPENED} AND kind IN {_kinds(WORKERS_KILLED)}",
    "server crashes": f"{_HAPPENED} AND kind IN {_kinds(CRASHES)}",
    "endings refused by the fence": """SELECT count(*) FROM (
        SELECT job_id, attempt FROM x WHERE mark = 'refused'
        UNION SELECT job_id, attempt FROM p WHERE name = 'CommitRefused')""",
    "leases reaped of workers that lived": """SELECT count(*) FROM reaps AS reap WHERE EXISTS (
        SELECT 1 FROM x WHERE x.job_id = reap.job_id AND x.attempt = reap.attempt AND x.at > reap.at)""",
    "commits in doubt that stood": f"{_HAPPENED} AND kind IN ('lose answer to commit', 'kill worker in commit')",
    "commits in doubt that did not": f"{_HAPPENED} AND kind = 'lose commit'",
    "starts in doubt that stood": """SELECT count(DISTINCT id) FROM a
        WHERE outcome = 'unknown' AND how <> 'outside' AND id IN (
            SELECT job_id FROM c WHERE kind = 'insert' AND c.at <= a.ended)""",
    "starts in doubt that did not": """SELECT count(DISTINCT id) FROM a
        WHERE outcome = 'unknown' AND how <> 'outside' AND id IS NOT NULL AND id NOT IN (
            SELECT job_id FROM c WHERE kind = 'insert' AND c.at <= a.ended)""",
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
    "retries from outside": "SELECT count(*) FROM a WHERE how = 'outside' AND op = 'retry' AND outcome = 'ack'",
    "chains deleted": "SELECT count(DISTINCT chain_id) FROM c WHERE kind = 'delete'",
}


def probes(history: History) -> dict[str, int]:
    """How often each thing of interest happened."""
    history.rows(_REAPS)
    found = {name: int(history.one(query)) for name, query in _PROBES.items()}
    found["jobs found by polling alone"] = _found_by_polling(history)
    return found


def _found_by_polling(history: History) -> int:
    """Attempts that a worker began while its listener was lost."""
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
    """What took how long, and what it cost; seconds."""
    starts = int(history.one("SELECT count(*) FROM x WHERE mark LIKE '%began'"))
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
        "take-over after the end of the lease": spread(takeovers(history)),
        "take-over after a kill": spread(_after_kills(history)),
        "first completion after the server serves again": spread(recoveries(history)),
    }


def takeovers(history: History) -> list[float]:
    """From the end of a lease to the next claim, where the store was there meanwhile."""
    history.rows(_REAPS)
    found = history.rows(
        """SELECT reap.old_lease, claim.at FROM reaps AS reap
            JOIN c AS claim ON claim.job_id = reap.job_id AND claim.kind = 'update' AND claim.new_status = 'running'
                AND claim.new_attempt = reap.attempt + 1
            WHERE claim.type IN ('chaos.effect', 'chaos.threaded', 'chaos.plain', 'chaos.blocking')"""
    )
    outages = _outages(history)
    return sorted(claimed - end for end, claimed in found if not _meets(outages, end, claimed))


def _reaped_late(history: History) -> list[float]:
    """From the end of a lease to its reaper, where the store was there meanwhile; the claim depends on who is free."""
    history.rows(_REAPS)
    outages = _outages(history)
    found = history.rows("SELECT old_lease, at FROM reaps")
    return sorted(at - end for end, at in found if not _meets(outages, end, at))


def _after_kills(history: History) -> list[float]:
    """From a kill to the next claim of each job that the worker held, where the store was there meanwhile."""
    history.rows(_REAPS)
    kills = history.rows(
        f"""SELECT began, CAST(substr(detail, 9) AS INTEGER) FROM f
            WHERE kind IN {_kinds(WORKERS_KILLED)} AND happened = 1"""
    )
    outages, found = _outages(history), []
    for began, pid in kills:
        rows = history.rows(
            """SELECT claim.at FROM reaps AS reap
                JOIN c AS held ON held.job_id = reap.job_id AND held.new_attempt = reap.attempt
                    AND held.new_status = 'running' AND held.kind = 'update' AND held.holder LIKE ?
                JOIN c AS claim ON claim.job_id = reap.job_id AND claim.kind = 'update'
                    AND claim.new_status = 'running' AND claim.new_attempt = reap.attempt + 1
                WHERE reap.at >= ?""",
            (f"chaos-{pid}-%", began),
        )
        found += [at - began for (at,) in rows if not _meets(outages, began, at)]
    return sorted(found)


def recoveries(history: History) -> list[float]:
    """From the moment that the server served again to the first completion."""
    return history.numbers(
        """SELECT (SELECT min(c.at) FROM c WHERE c.kind = 'update' AND c.new_status IN ('completed', 'continued')
                   AND c.at >= serving.at) - serving.at FROM serving"""
    )


def _outages(history: History) -> list[tuple[float, float]]:
    """When the store was broken, or locked, or workers could not reach it."""
    disturbing = """('kill postgres', 'crash postgres', 'kill backend', 'restart postgres', 'terminate backends',
        'cancel statements', 'lock rows', 'lock table', 'kill redis', 'restart redis', 'pause redis',
        'kill redis clients', 'lock file')"""
    rows = history.rows(f"SELECT began, ended FROM f WHERE kind IN {disturbing}")
    return [(began, ended + _OUTAGE) for began, ended in rows]


def _meets(outages: Sequence[tuple[float, float]], begin: float, end: float) -> bool:
    return any(began <= end and begin <= ended for began, ended in outages)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 95th of 100, and most."""
    if not values:
        return {"count": 0}

    def at(share: float) -> float:
        return round(values[min(len(values) - 1, int(share * len(values)))], 3)

    return {"count": len(values), "p50": at(0.5), "p95": at(0.95), "max": round(values[-1], 3)}
