"""Durable, typed chains of jobs that commit with your own transactions.

:class:`JobType` and :class:`JobTypes` declare jobs. :class:`Client` and :class:`AsyncClient` start chains.
:class:`Processors` holds the handlers, and :class:`InProcessWorker` runs them. Errors are in :mod:`queuert.errors`.
"""

from queuert.client import AsyncChain, AsyncClient, Chain, Client, NewChain
from queuert.deduplication import Deduplicate
from queuert.errors import QueuertError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import AbortReason, ChainStatus, Job, JobStatus
from queuert.limits import Limits
from queuert.outcomes import Outcome
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.run_at import after, at
from queuert.schedules import RecurringSchedule
from queuert.state.postgres import PostgresState
from queuert.worker import Attempt, AttemptMiddleware, InProcessWorker, Processors

__all__ = [
    "AbortReason",
    "AsyncChain",
    "AsyncClient",
    "Attempt",
    "AttemptMiddleware",
    "Chain",
    "ChainStatus",
    "Client",
    "Deduplicate",
    "InProcessWorker",
    "Job",
    "JobStatus",
    "JobType",
    "JobTypes",
    "LeasePolicy",
    "Limits",
    "NewChain",
    "Outcome",
    "PostgresState",
    "Processors",
    "QueuertError",
    "RecurringSchedule",
    "RetryPolicy",
    "after",
    "at",
]
