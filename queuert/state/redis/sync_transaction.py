# Generated from queuert/state/redis/async_transaction.py, do not edit: see scripts/unasync.py
"""The block of an attempt on Redis, which writes a finish at its end. ``sync_transaction.py`` is generated."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from queuert.errors import (
    CapabilityMissingError,
    LeaseLostError,
    StateError,
    StateUnavailableError,
    UnsupportedConnectionError,
)
from queuert.jobs import AbortReason
from queuert.state._asyncio import sync_pauses
from queuert.state.redis.errors import NO_CONNECTION
from queuert.state.steps import NewStep
from queuert.state.types import ClaimedJob, Finish, FinishResult, Lease


class SupportsFinish(Protocol):
    """The operations of the store that the block uses."""

    def finish(self, finishes: Sequence[Finish]) -> list[FinishResult]:
        """Write finishes."""
        ...

    def why_lost(self, lease: Lease) -> AbortReason | None:
        """Return why a lease does not hold its job."""
        ...


class RedisTransaction:
    """Keeps the finish until the block ends without an error, and writes it then, if the lease is valid.

    Redis has no transaction that stays open while a caller works. So nothing else commits with the finish, and only the
    lease keeps others from claiming the job meanwhile. If the lease is lost, leaving the block raises, and nothing was
    written.
    """

    def __init__(self, store: SupportsFinish, job: ClaimedJob) -> None:
        self._store = store
        self._job = job
        self._kept: tuple[Finish, FinishResult] | None = None

    @property
    def connection(self) -> Any:
        """Raise: Redis has no connection for writes of the caller.

        Raises:
            UnsupportedConnectionError: always.
        """
        raise UnsupportedConnectionError(NO_CONNECTION)

    @property
    def locks_job(self) -> bool:
        """False: only the lease keeps others from claiming the job."""
        return False

    def abort(self) -> None:
        """Do nothing: no connection is in use, and each script has its own timeout."""

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Keep the finish. The result is completed when the finish is written at the end of the block."""
        if self._kept is not None:
            raise StateError("the attempt must be finished only once in a block")
        result = FinishResult(finish.job.id)
        self._kept = finish, result
        return result

    def record_step(self, step: NewStep) -> NoReturn:
        """Raise: nothing of the caller's could commit with the step.

        Raises:
            CapabilityMissingError: always.
        """
        raise CapabilityMissingError("user_transactions", "use attempt.step(), or Postgres or SQLite")

    def __enter__(self) -> Self:
        reason = self._store.why_lost(self._job.lease)
        if reason is not None:
            raise LeaseLostError(self._job.id, reason)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._kept is None:
            return
        finish, result = self._kept
        written = self._write(finish)
        if written.lost is not None:
            raise LeaseLostError(finish.job.id, written.lost)
        # The caller has this result, and sends the notifications and emits the events after the block.
        result.due_types, result.chain_seconds = written.due_types, written.chain_seconds

    def _write(self, finish: Finish) -> FinishResult:
        """Write the finish. It is repeated if the answer was lost, since a finish that was written says so."""
        failure: StateUnavailableError | None = None
        for _ in sync_pauses():
            try:
                [written] = self._store.finish([finish])
            except StateUnavailableError as error:
                failure = error
            else:
                return written
        raise StateUnavailableError("the answer to the commit was lost: whether it took effect is unknown") from failure
