"""What a handler gets: one claim of one job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from queuert.client.starts import ChainReference, chain_ids, checked_priority
from queuert.errors import DefinitionError
from queuert.job_types import JobType
from queuert.jobs import Blocker
from queuert.outcomes import Cancel, ContinueWith, Fail, Retry, pause
from queuert.payloads import check_text
from queuert.schedules import Schedule
from queuert.state.adapter import ClaimedJob
from queuert.worker.abort import AbortSignal
from queuert.worker.endings import check_continuation

if TYPE_CHECKING:
    from queuert.worker.completion import Completion, CompletionRuntime

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
_N = TypeVar("_N")


class Attempt(Generic[I, R]):
    """One claim of one job, under a lease that is renewed while the handler runs.

    ``I`` is the job's input, ``R`` what its chain ends with.

    Attributes:
        input: the job's input, decoded and validated.
        job_id: the job's id.
        chain_id: the id of its chain.
        type: the name of its job type.
        chain_type: the name of the job type that the chain began with.
        number: 1 for the first attempt.
        worker: the name of the worker that runs it.
        blockers: the chains that the job waited for, in the order in which they were given, with their outputs.
        abort: says whether and why the attempt must stop.
    """

    __slots__ = ("_job_type", "_runtime", "abort", "blockers", "claimed", "input", "worker")

    def __init__(
        self,
        *,
        job_type: JobType[I, R],
        claimed: ClaimedJob,
        input: I,
        worker: str,
        abort: AbortSignal,
        blockers: Sequence[Blocker],
        runtime: CompletionRuntime,
    ) -> None:
        self._job_type = job_type
        self._runtime = runtime
        self.claimed = claimed
        self.input: I = input
        self.worker = worker
        self.abort = abort
        self.blockers = blockers

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.claimed.id

    @property
    def chain_id(self) -> str:
        """The id of the job's chain."""
        return self.claimed.chain_id

    @property
    def type(self) -> str:
        """The name of the job's type."""
        return self.claimed.type

    @property
    def chain_type(self) -> str:
        """The name of the job type that the chain began with."""
        return self.claimed.chain_type

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return self.claimed.attempt

    @property
    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop: finish soon, or the job is given back when the grace is over."""
        return self._runtime.worker_stopping()

    def __repr__(self) -> str:
        return f"Attempt({self.type!r}, job {self.job_id!r}, number {self.number})"

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def continue_with(
        self,
        job_type: JobType[_N, R],
        input: _N,
        *,
        id: str | None = None,
        schedule: Schedule | None = None,
        priority: int | None = None,
        blockers: Iterable[ChainReference] = (),
    ) -> ContinueWith[R]:
        """The chain goes on with a job of another type: return it.

        Args:
            job_type: one of those that the job's own type declares in ``continues_with``.
            input: the next job's input.
            id: its id, at most 512 characters; by default a new UUID.
            schedule: when it may run first; by default at once.
            priority: by default that of this job.
            blockers: chains that must close before it may run.

        Raises:
            UndeclaredContinuationError: the job's type does not declare it.
            PayloadError: the input cannot be stored.
            DefinitionError: the job would wait for its own chain.
        """
        check_continuation(self._job_type, job_type.name)
        awaited = chain_ids(blockers)
        if self.chain_id in awaited:
            raise DefinitionError("a job cannot wait for its own chain: it would wait for ever")
        return ContinueWith(
            job_type=job_type.name,
            input=job_type.encode_input(input),
            id=None if id is None else check_text(id, what="id"),
            priority=None if priority is None else checked_priority(priority),
            schedule=schedule,
            blockers=awaited,
        )

    def retry(self, *, after: float | timedelta | None = None, reason: str = "the handler asked for it") -> Retry:
        """Try again ``after`` seconds, or after the pause of the retry policy: return it. The attempt counts.

        Raises:
            ConfigurationError: ``after`` is negative, or longer than a hundred years.
        """
        return Retry(after=None if after is None else pause(after), reason=reason)

    def fail(self, reason: str) -> Fail:
        """Give up, whatever attempts are left: return it. The chain is ``failed`` with this reason."""
        return Fail(reason)

    def cancel(self, reason: str = "the handler asked for it") -> Cancel:
        """The job is no longer wanted: return it. The chain is ``cancelled``."""
        return Cancel(reason)

    def complete(self) -> Completion[R]:
        """Open a transaction for your own writes and the job's ending, which commit together or not at all.

        It is fenced by the lease: while it is open nobody can take the job, and it cannot be opened once somebody has.
        Use ``async with`` in a coroutine and ``with`` in a plain function; call ``tx.finish`` once, last, and return
        what it returns::

            async with attempt.complete() as tx:
                await tx.connection.execute("update pages set ...")
                return tx.finish(Published(...))

        Settings of the session that you change without ``SET LOCAL`` stay with the connection, and meet others later.
        Keep it short: it holds row locks. An exception inside rolls all of it back and is a failed attempt.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Let it pass.
            CompletionMissingError: the block ended without ``tx.finish``; it was rolled back.
            CompletionMisuseError: it was used before in this attempt, or the store has no transactions.
            StateUnavailableError: the connection broke; unless the commit is known to stand, the attempt is repeated.
        """
        return self._runtime.completion(self)
