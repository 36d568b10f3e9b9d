"""The public names: those at the top, and where the others are."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import queuert

STORES = ("PostgresState", "RedisState", "SQLiteState")

ELSEWHERE = {
    "queuert.client": ("ClientMiddleware",),
    "queuert.errors": (
        "ChainAlreadyClosedError",
        "ChainCancelledError",
        "ChainNotFoundError",
        "DatabaseMovedError",
        "ErrorKind",
        "EventsLostError",
        "JobIdConflictError",
        "JobNotFoundError",
        "StateUnavailableError",
    ),
    "queuert.event_log": ("EventKind", "EventLevel", "JobEvent"),
    "queuert.jobs": ("AbortReason", "Job"),
    "queuert.observability": ("LogObservability",),
    "queuert.policies": ("LeasePolicy",),
    "queuert.run_at": ("RunAt",),
    "queuert.schedules": ("MissedRuns",),
    "queuert.worker": ("CallNext", "ContextKey"),
}
"""What most programs use besides, by its module, as the guide names it."""


def public_names() -> dict[str, Any]:
    """What users see: the names at the top, and those of ``ELSEWHERE``."""
    found = {name: getattr(queuert, name) for name in (*queuert.__all__, *STORES)}
    return found | {name: getattr(import_module(module), name) for module, names in ELSEWHERE.items() for name in names}
