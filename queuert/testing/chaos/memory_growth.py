"""Whether the processes that live through a run use more memory or files at its end, at rest, than before it."""

from __future__ import annotations

import json
from sqlite3 import Row
from statistics import median
from typing import Any

from queuert.testing.chaos.history import History

RESIDENT = "growth of resident memory at rest, in 100"
FILES = "growth of open files at rest"
BEYOND = "open files of a worker at rest, beyond those of a fresh one"
SESSIONS = "sessions of the server that no process has"
WITNESSES = "witnesses that lived"
OF_PROCESSES = (RESIDENT, FILES, BEYOND)
ALL = (*OF_PROCESSES, SESSIONS)

_PAIRS = """SELECT before.role, before.resident AS had, after.resident AS has, before.files AS had_files,
    after.files AS has_files, before.threads AS had_threads, after.threads AS has_threads,
    before.kinds AS had_kinds, after.kinds AS has_kinds, before.pid
    FROM (SELECT role, pid, max(resident) AS resident, max(files) AS files, max(threads) AS threads, kinds
            FROM resources WHERE rest = 'before' GROUP BY role, pid) AS before
        JOIN resources AS after ON after.pid = before.pid AND after.rest = 'after'
    ORDER BY before.role DESC"""
"""A pool need not be full after one exercise: the highest of several before the faults counts."""

_CURVES = "SELECT pid, resident FROM resources WHERE rest IS NULL AND pid = ? ORDER BY at"

_SAMPLES = 200
"""The number of samples, about one a second: with fewer, the run was too short to compare its parts."""

_WORKERS = """SELECT files, kinds, files - coalesce(allowed, 0) AS compared
    FROM resources WHERE rest = 'after' AND role = 'worker' AND slot >= 0 ORDER BY compared"""
_FRESH = "SELECT files, kinds FROM resources WHERE rest = 'before' AND role = 'worker' ORDER BY files"


def growth(history: History) -> dict[str, float]:
    """Return the measures; 0 for those without data, which :func:`unmeasured` lists."""
    pairs = history.rows(_PAIRS)
    found: dict[str, float] = dict.fromkeys(ALL, 0.0)
    if pairs:
        found[RESIDENT] = round(max(0.0, *(_grown(history, row) for row in pairs)), 2)
        found[FILES] = float(max(0, *(row["has_files"] - row["had_files"] for row in pairs)))
        found[BEYOND] = float(max(0, _beyond(history)))
    sessions, held = history.fact("sessions at rest"), history.fact("connections at rest")
    if sessions is not None:
        found[SESSIONS] = float(max(0, sessions - held))
    return found


def unmeasured(history: History) -> frozenset[str]:
    """Return the measures without data."""
    sessions = frozenset() if history.fact("sessions at rest") is not None else frozenset([SESSIONS])
    return sessions if witnesses(history) else sessions | frozenset(OF_PROCESSES)


def _grown(history: History, row: Row) -> float:
    """Return the growth of a process in percent: since before the faults, or, if less, three times that of the last
    third.

    During the first hundreds of faults a process allocates memory that it keeps for good, such as code and texts that
    are loaded on demand. A leak grows as fast in the last third of the run as before it.
    """
    in_all = 100 * (row["has"] / row["had"] - 1)
    curve = [found["resident"] for found in history.rows(_CURVES, (row["pid"],))]
    if len(curve) < _SAMPLES:
        return float(in_all)
    tenth = len(curve) // 10
    begin, end = median(curve[2 * len(curve) // 3 - tenth : 2 * len(curve) // 3]), median(curve[-tenth:])
    return float(min(in_all, 3 * 100 * (end / begin - 1)))


def witnesses(history: History) -> int:
    """Whether each was measured before the faults and after the drain, as one process."""
    return len(history.rows(_PAIRS))


def _beyond(history: History) -> int:
    """Return how many more files than a fresh worker the worker with most of them has."""
    fresh, most = history.rows(_FRESH), history.rows(_WORKERS)
    return most[-1]["compared"] - fresh[-1]["files"] if fresh and most else 0


def _more(has: str, had: str) -> dict[str, int]:
    """Return how many more files there are of each kind; kinds are JSON."""
    after, before = json.loads(has), json.loads(had)
    return {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] > before.get(kind, 0)}


def reported(history: History) -> dict[str, Any]:
    """Return the growth as text."""
    found: dict[str, Any] = {}
    for row in history.rows(_PAIRS):
        found[f"witness, {row['role']}"] = {
            "MB before": round(row["had"] / 1e6, 1), "MB after": round(row["has"] / 1e6, 1),
            "files before": row["had_files"], "files after": row["has_files"],
            "threads before": row["had_threads"], "threads after": row["has_threads"],
            "more files": _more(row["has_kinds"], row["had_kinds"]),
        }  # fmt: skip
    if _beyond(history) > 0:
        fresh, most = history.rows(_FRESH)[-1], history.rows(_WORKERS)[-1]
        found["files of the worker with most, beyond those of a fresh one"] = _more(most["kinds"], fresh["kinds"])
    return found | {
        "open files of the workers at rest": [row[0] for row in history.rows(_WORKERS)] or "not measured",
        "sessions of the server at rest": history.fact("sessions at rest", "not measured"),
    }
