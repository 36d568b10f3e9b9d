"""Help for testing: of programs that use queuert, and of adapters that implement its contracts.

For programs: :class:`JobQueue`, :class:`AsyncJobQueue` and :func:`run_inline_sync` here, and the fixtures of the pytest
plugin, which come with the package (``pytest --fixtures`` shows those that begin with ``queuert_``).

The other modules are imported one by one, since each needs other packages: `databases` makes a database a test from one
template, `events` keeps what was told, `fault_proxy` breaks connections on purpose, `conformance` tests adapters.
"""

from queuert.testing.async_queue import AsyncJobQueue
from queuert.testing.attempts import RanAttempt, UnexpectedFailureError
from queuert.testing.clock import StoredTimes
from queuert.testing.idle import RanUntilIdle, RemainingJobs
from queuert.testing.inline import run_inline, run_inline_sync
from queuert.testing.sync_queue import JobQueue

__all__ = [
    "AsyncJobQueue",
    "JobQueue",
    "RanAttempt",
    "RanUntilIdle",
    "RemainingJobs",
    "StoredTimes",
    "UnexpectedFailureError",
    "run_inline_sync",
    "run_inline",
]
