"""Durable, typed chains of jobs that commit with your own transactions.

Definitions (:class:`JobType`, :class:`JobTypes`) are shared; producers use :class:`Client` or :class:`AsyncClient`,
workers :class:`Processors` and :class:`InProcessWorker`. Errors are in :mod:`queuert.errors`.
"""

from queuert.client import AsyncChain, AsyncClient, Chain, Client, NewChain
from queuert.errors import QueuertError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import AbortReason, ChainStatus, Job, JobStatus
from queuert.outcomes import Cancel, ContinueWith, Fail, Outcome, Retry
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.schedules import after, at
from queuert.state.postgres import PostgresState
from queuert.worker import Attempt, InProcessWorker, Processors

__all__ = [
    "AbortReason",
    "AsyncChain",
    "AsyncClient",
    "Attempt",
    "Cancel",
    "Chain",
    "ChainStatus",
    "Client",
    "ContinueWith",
    "Fail",
    "InProcessWorker",
    "Job",
    "JobStatus",
    "JobType",
    "JobTypes",
    "LeasePolicy",
    "NewChain",
    "Outcome",
    "PostgresState",
    "Processors",
    "QueuertError",
    "Retry",
    "RetryPolicy",
    "after",
    "at",
]
