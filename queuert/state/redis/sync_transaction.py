# Generated from queuert/state/redis/async_transaction.py, do not edit: see scripts/unasync.py
"""A block that ends with a job's finish. ``sync_transaction.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from queuert.errors import LeaseLostError, StateError, StateUnavailableError, UnsupportedConnectionError
from queuert.jobs import AbortReason
from queuert.state._asyncio import sync_pauses
from queuert.state.redis.sync_base import NO_TRANSACTIONS
from queuert.state.types import ClaimedJob, Finish, FinishResult, Lease


class SupportsFinish(Protocol):
    """What the block needs of its store."""

    def finish(self, finishes: Sequence[Finish]) -> list[FinishResult]:
        """End attempts."""
        ...

    def standing(self, lease: Lease) -> AbortReason | None:
        """Why a lease does not hold."""
        ...


class RedisTransaction:
    """The finish is kept back until the block ends well, and written then, if the lease still holds.

    Redis has no transaction that stays open while a caller works: nothing else commits with the finish, and nothing
    keeps others from taking the job meanwhile but the lease. If it is lost, leaving the block raises and nothing was
    written.
    """

    def __init__(self, store: SupportsFinish, job: ClaimedJob) -> None:
        self._store = store
        self._job = job
        self._kept: tuple[Finish, FinishResult] | None = None

    @property
    def connection(self) -> Any:
        """There is none.

        Raises:
            UnsupportedConnectionError: always.
        """
        raise UnsupportedConnectionError(NO_TRANSACTIONS)

    @property
    def holds(self) -> bool:
        """Nothing but the lease keeps others from the job."""
        return False

    def cut(self) -> None:
        """There is no connection to end: each script has its own timeout."""

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Keep the finish. The result is filled in when it is written, as the block ends."""
        if self._kept is not None:
            raise StateError("the attempt was ended already in this block")
        result = FinishResult(finish.job.id)
        self._kept = finish, result
        return result

    def __enter__(self) -> Self:
        reason = self._store.standing(self._job.lease)
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
        # Whoever holds the result is to publish what became due, and does so after the block.
        result.due_types = written.due_types

    def _write(self, finish: Finish) -> FinishResult:
        """Write the finish. Asked again when the answer was lost: a finish that stands says so."""
        failure: StateUnavailableError | None = None
        for _ in sync_pauses():
            try:
                [written] = self._store.finish([finish])
            except StateUnavailableError as error:
                failure = error
            else:
                return written
        raise StateUnavailableError("the answer to the commit was lost: its outcome is unknown") from failure
