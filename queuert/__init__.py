"""Durable, typed chains of jobs that commit with your own transactions.

:class:`JobType` and :class:`JobTypes` declare jobs. :class:`Client` and :class:`AsyncClient` start chains.
:class:`Processors` holds the handlers, and :class:`InProcessWorker` runs them. :class:`PostgresState`,
:class:`RedisState` and :class:`SQLiteState` are where jobs live.

The rest has modules of its own, which the guide names where it is used: errors in :mod:`queuert.errors`, what is read
of jobs and events in :mod:`queuert.jobs` and :mod:`queuert.event_log`, :mod:`queuert.observability`,
:mod:`queuert.notify`, :mod:`queuert.codecs`, :mod:`queuert.spark`, :mod:`queuert.web`, :mod:`queuert.webhooks`,
:mod:`queuert.embedded` and :mod:`queuert.testing`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from queuert.client import AsyncChain, AsyncClient, Chain, Client, NewChain
from queuert.deduplication import Deduplicate
from queuert.errors import JobFailedError, QueuertError, RetryLater, Unrecoverable, WaitTimeoutError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import Limits, Rate
from queuert.outcomes import Continues, Outcome
from queuert.policies import Keep, Retention, RetryPolicy
from queuert.run_at import after, at
from queuert.schedules import RecurringSchedule
from queuert.worker import Attempt, AttemptMiddleware, InProcessWorker, Processors

if TYPE_CHECKING:
    from queuert.state.postgres import PostgresState as PostgresState
    from queuert.state.redis import RedisState as RedisState
    from queuert.state.sqlite import SQLiteState as SQLiteState

# Without the stores: import * would import each of them, and fail where the driver of one is not installed.
__all__ = [
    "AsyncChain",
    "AsyncClient",
    "Attempt",
    "AttemptMiddleware",
    "Chain",
    "ChainStatus",
    "Client",
    "Continues",
    "Deduplicate",
    "InProcessWorker",
    "JobFailedError",
    "JobStatus",
    "JobType",
    "JobTypes",
    "Keep",
    "Limits",
    "NewChain",
    "Outcome",
    "Processors",
    "QueuertError",
    "Rate",
    "RecurringSchedule",
    "Retention",
    "RetryLater",
    "RetryPolicy",
    "Unrecoverable",
    "WaitTimeoutError",
    "after",
    "at",
]

_STORES = {"PostgresState": "postgres", "RedisState": "redis", "SQLiteState": "sqlite"}
_DRIVERS = {"PostgresState": "psycopg", "RedisState": "redis", "SQLiteState": "sqlite3"}


def __getattr__(name: str) -> Any:
    """Import a store when it is used, as each needs its driver."""
    if name not in _STORES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"queuert.state.{_STORES[name]}"), name)


def __dir__() -> list[str]:
    # Without those that cannot be imported here: help() and inspect.getmembers() get all that is named.
    return [*__all__, *(store for store, driver in _DRIVERS.items() if find_spec(driver) is not None)]
