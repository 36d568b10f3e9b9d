"""The in-process worker: claims jobs, runs handlers, keeps leases, reaps."""

from queuert.worker.attempt import AbortSignal, Attempt, AttemptContext, ContextKey
from queuert.worker.earlier_jobs import EarlierJob, EarlierJobs
from queuert.worker.health import Health
from queuert.worker.lifespan import Lifespan
from queuert.worker.middleware import AttemptMiddleware, CallNext, Middleware, MiddlewareFunction
from queuert.worker.processors import Handler, Processor, Processors
from queuert.worker.transaction_blocks import Completion, GuardedBlock, GuardedTransaction, Transaction
from queuert.worker.worker import InProcessWorker

__all__ = [
    "AbortSignal",
    "Attempt",
    "AttemptContext",
    "AttemptMiddleware",
    "CallNext",
    "Completion",
    "ContextKey",
    "EarlierJob",
    "EarlierJobs",
    "GuardedBlock",
    "GuardedTransaction",
    "Handler",
    "Health",
    "InProcessWorker",
    "Lifespan",
    "Middleware",
    "MiddlewareFunction",
    "Processor",
    "Processors",
    "Transaction",
]
