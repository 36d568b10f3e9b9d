"""Durable, typed chains of jobs that commit with your own transactions.

:class:`JobType` and :class:`JobTypes` declare jobs. :class:`Client` and :class:`AsyncClient` start chains.
:class:`Processors` holds the handlers, and :class:`InProcessWorker` runs them. Errors are in :mod:`queuert.errors`.

What needs an extra, or is for special cases, has a module of its own: :mod:`queuert.codecs`, :mod:`queuert.embedded`,
:mod:`queuert.observability`, :mod:`queuert.spark`, :mod:`queuert.state` and :mod:`queuert.testing`.
"""

from typing import TYPE_CHECKING, Any

from queuert.client import AsyncChain, AsyncClient, Chain, Client, ClientMiddleware, NewChain
from queuert.deduplication import Deduplicate
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainCancelledError,
    ChainNotFoundError,
    DatabaseMovedError,
    EventsLostError,
    JobFailedError,
    JobIdConflictError,
    JobNotFoundError,
    QueuertError,
    RetryLater,
    StateUnavailableError,
    Unrecoverable,
    WaitTimeoutError,
)
from queuert.event_log import EventKind, EventLevel, JobEvent
from queuert.job_types import JobType, JobTypes
from queuert.jobs import AbortReason, ChainStatus, Job, JobStatus
from queuert.limits import Limits, Rate
from queuert.observability import LogObservability
from queuert.outcomes import Continues, Outcome
from queuert.policies import Keep, LeasePolicy, Retention, RetryPolicy
from queuert.run_at import RunAt, after, at
from queuert.schedules import MissedRuns, RecurringSchedule
from queuert.state.postgres import PostgresState
from queuert.worker import Attempt, AttemptMiddleware, CallNext, ContextKey, InProcessWorker, Processors

if TYPE_CHECKING:
    from queuert.state.redis import RedisState as RedisState
    from queuert.state.sqlite import SQLiteState as SQLiteState

__all__ = [
    "AbortReason",
    "AsyncChain",
    "AsyncClient",
    "Attempt",
    "AttemptMiddleware",
    "CallNext",
    "Chain",
    "ChainAlreadyClosedError",
    "ChainCancelledError",
    "ChainNotFoundError",
    "ChainStatus",
    "Client",
    "ClientMiddleware",
    "ContextKey",
    "Continues",
    "DatabaseMovedError",
    "Deduplicate",
    "EventKind",
    "EventLevel",
    "EventsLostError",
    "InProcessWorker",
    "Job",
    "JobEvent",
    "JobFailedError",
    "JobIdConflictError",
    "JobNotFoundError",
    "JobStatus",
    "JobType",
    "JobTypes",
    "Keep",
    "LeasePolicy",
    "Limits",
    "LogObservability",
    "MissedRuns",
    "NewChain",
    "Outcome",
    "PostgresState",
    "Processors",
    "QueuertError",
    "Rate",
    "RecurringSchedule",
    "Retention",
    "RetryLater",
    "RetryPolicy",
    "RunAt",
    "StateUnavailableError",
    "Unrecoverable",
    "WaitTimeoutError",
    "after",
    "at",
]


def __getattr__(name: str) -> Any:
    """Import the other stores when they are used. They are not in ``__all__``, since that of Redis needs an extra."""
    if name == "RedisState":
        from queuert.state.redis import RedisState

        return RedisState
    if name == "SQLiteState":
        from queuert.state.sqlite import SQLiteState

        return SQLiteState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
