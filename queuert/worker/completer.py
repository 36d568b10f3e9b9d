"""Writes the finishes of attempts, many in one statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queuert.errors import StateError, StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import FinishesWritten, LoopRecovered, StoreCallFailed
from queuert.observability.tracing import Tracing
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import Finish, FinishResult, payload_characters
from queuert.worker.finishes import presumed
from queuert.worker.leases import lease_time
from queuert.worker.prefetch import Slots
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.telemetry import AttemptReporter, FinishReport

if TYPE_CHECKING:
    from queuert.worker.runner import AttemptRunner

_MAX_BATCH = 512
_MAX_BATCH_CHARACTERS = 16 * 1024 * 1024
"""The most characters in the texts of one statement. A worker needs three to four times that memory for each statement
under way, and the event loop is blocked while it is made."""

_CONCURRENT_FLUSHES = 2
"""Statements under way at once: the worker prepares one while the server executes the other."""

_LARGE_FINISH = 1024 * 1024
_MAX_CONNECTION_BREAKS = 3
"""When a finish of so many characters breaks its connection more often than this, though the store answers others, it
is rejected: the server or the network does not accept it."""


_KEEP_WAITING = 5.0
"""While finishes are written, those that wait behind them are not stuck, however long it takes: so often, in seconds,
their leases are renewed further."""


class _QueuedFinish:
    """A finish that is to be written."""

    __slots__ = ("connection_breaks", "decided", "finish", "future", "indeterminate", "lock_retries", "runner", "size")

    def __init__(
        self, finish: Finish, runner: AttemptRunner | None, future: asyncio.Future[FinishResult] | None = None
    ) -> None:
        self.finish = finish
        self.runner = runner
        self.future = future
        self.size = payload_characters(finish)
        self.lock_retries = 0
        self.decided = False
        self.indeterminate = False
        """Whether it was sent, and the answer was lost."""
        self.connection_breaks = 0
        """How often in a row its own statement broke the connection, though the store answered others. If it is not 0,
        the finish is sent alone."""

    @property
    def is_wanted(self) -> bool:
        """Whether a runner or a caller still waits for its result."""
        return not self.decided and (self.future is None or not self.future.done())

    def notify_not_stuck(self) -> None:
        """Tell the runner that it will be sent, or sent again."""
        if self.runner is not None:
            self.runner.on_finish_waits()

    def fail(self, error: Exception) -> None:
        """Tell the runner or the caller that it is not written."""
        self.decided = True
        if self.runner is not None:
            self.runner.on_rejected(self.finish, error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Completer:
    """Groups finishes without waiting for more: those that are submitted while a statement runs are in the next one.

    A finish is sent until the store has answered. If the connection breaks, it is unknown whether the finish was
    written. To send it again is safe: it is written only while the lease holds, and reported as written if it was. A
    batch that broke its connection is sent in halves. A large finish that breaks it alone is delayed, so that others
    are written first, and is rejected after some attempts.

    The finishes of one statement are reported together. Then their runners are cleaned up, and slots that waited for
    them start the next attempts. ``types`` are the job types that the worker knows.
    """

    def __init__(
        self,
        store: AsyncStore,
        reporter: AttemptReporter,
        slots: Slots,
        *,
        types: Sequence[str] = (),
        worker: str,
        observers: Observers,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._tracing = tracing
        self._reporter = reporter
        self._slots = slots
        self._types = types
        self._worker = worker
        self._observers = observers
        self._event_loop = asyncio.get_running_loop()
        self._pending: deque[_QueuedFinish] = deque()
        self._delayed: set[_QueuedFinish] = set()
        """Finishes that are sent again after a pause."""
        self.characters = 0
        """The number of characters in the texts of all finishes that are not written yet."""
        self._keep_waiting_at = 0.0
        self._has_pending = asyncio.Event()
        self._stopped = False
        self._lock_backoff = Backoff(initial_delay=0.05, max_delay=1.0)
        self._backoff = Backoff(initial_delay=0.05, max_delay=2.0)
        self.loops = [
            SupervisedLoop(f"completer-{lane}", self._step, worker=worker, observers=observers)
            for lane in range(1, _CONCURRENT_FLUSHES + 1)
        ]

    def start(self) -> None:
        """Start the loops."""
        for loop in self.loops:
            loop.start()

    async def stop(self) -> None:
        """Stop, after the last attempt. Finishes that are still pending fail, and their leases expire."""
        self._stopped = True
        try:
            # At the same time, since each waits for the driver to cancel its statement.
            await asyncio.gather(*(loop.stop() for loop in self.loops))
        finally:
            for queued in self._delayed.union(self._pending):
                self._fail(queued, _stopped_error())
            self._delayed.clear()
            self._pending.clear()

    def submit(self, finish: Finish, runner: AttemptRunner) -> None:
        """Write one finish. Its runner is called back in the event loop, never from within this call."""
        queued = _QueuedFinish(finish, runner)
        if self._stopped:
            self._event_loop.call_soon(queued.fail, _stopped_error())
        else:
            # Set already while others are pending. This runs for each job.
            if not self._pending:
                self._has_pending.set()
            self._pending.append(queued)
            self.characters += queued.size

    async def finish(self, finish: Finish) -> FinishResult:
        """Write one finish, and wait until it is durable or rejected.

        Raises:
            Exception: the store cannot write this finish: the id of a continuation exists, or its blocker does not.
            StateUnavailableError: the worker stopped first.
        """
        if self._stopped:
            raise _stopped_error()
        future: asyncio.Future[FinishResult] = self._event_loop.create_future()
        queued = _QueuedFinish(finish, None, future)
        self.characters += queued.size
        self._add(queued)
        return await future

    def _add(self, queued: _QueuedFinish) -> None:
        if self._stopped:
            self._fail(queued, _stopped_error())
        elif queued.is_wanted:
            self._pending.append(queued)
            self._has_pending.set()
        else:
            self._free_size(queued)

    def _fail(self, queued: _QueuedFinish, error: Exception) -> None:
        self._free_size(queued)
        queued.fail(error)

    def _free_size(self, queued: _QueuedFinish) -> None:
        """Count its characters no longer."""
        self.characters -= queued.size
        queued.size = 0

    async def _step(self) -> None:
        await self._has_pending.wait()
        batch = self._take_batch()
        if not self._pending:
            self._has_pending.clear()
        try:
            if batch:
                await self._write(batch)
        except BaseException:
            unwritten = [queued for queued in batch if queued.is_wanted and queued not in self._delayed]
            for queued in unwritten:
                queued.indeterminate = True  # Its statement may have been sent.
            self._pending.extendleft(reversed(unwritten))
            self._has_pending.set()
            raise

    def _take_batch(self) -> list[_QueuedFinish]:
        """Remove and return the next batch: of bounded size, but at least one finish."""
        pending, size = self._pending, 0
        batch: list[_QueuedFinish] = []
        while pending and len(batch) < _MAX_BATCH:
            queued = pending[0]
            size += queued.size
            if batch and (size > _MAX_BATCH_CHARACTERS or queued.connection_breaks):
                break
            batch.append(pending.popleft())
            if queued.connection_breaks:
                break
        return batch

    async def _write(self, batch: Sequence[_QueuedFinish]) -> None:
        """Send a batch until the store has decided about each of its finishes; in parts, after a failure."""
        unsent, part_size, failures = deque(batch), len(batch), 0
        while unsent:
            part = [unsent.popleft() for _ in range(min(part_size, len(unsent)))]
            sent_at = lease_time()
            try:
                finishes = [queued.finish for queued in part]
                if self._tracing is None:
                    results = await self._store.finish(finishes, wait=False)
                else:
                    results = await self._traced_finish(self._tracing, part, finishes)
            except StateUnavailableError as error:
                failures += 1
                failed = StoreCallFailed(worker=self._worker, operation="finish", error=str(error), failures=failures)
                self._observers.emit(failed)
                for queued in part:
                    queued.indeterminate = True
                if len(part) > 1 or not await self._breaks_connections(part[0], error):
                    unsent.extendleft(reversed(part))
                part_size = max(1, len(part) // 2)
                for queued in (*part, *unsent):
                    queued.notify_not_stuck()
                await asyncio.sleep(self._backoff.delay(failures))
            except Exception as error:
                # The store cannot write one of them, so each is sent alone. Others may have been written before it.
                if len(part) == 1:
                    self._fail(part[0], error)
                    continue
                for queued in part:
                    queued.indeterminate = True
                unsent.extendleft(reversed(part))
                part_size = 1
            else:
                if failures:
                    self._observers.emit(LoopRecovered(worker=self._worker, loop="finish", failures=failures))
                failures, part_size = 0, 2 * part_size
                answered_at = lease_time()
                self._decide(part, results)
                if answered_at >= self._keep_waiting_at:
                    self._keep_waiting_at = answered_at + _KEEP_WAITING
                    for queued in (*unsent, *self._pending):
                        queued.notify_not_stuck()
                if self._observers.want(FinishesWritten):
                    written = FinishesWritten(worker=self._worker, count=len(part), duration=answered_at - sent_at)
                    self._observers.emit(written)

    async def _traced_finish(
        self, tracing: Tracing, part: Sequence[_QueuedFinish], finishes: Sequence[Finish]
    ) -> list[FinishResult]:
        traced = [
            (trace, queued.finish) for queued in part if queued.runner is not None and (trace := queued.runner.trace)
        ]
        if not traced:
            return await self._store.finish(finishes, wait=False)
        with tracing.settling([trace for trace, _ in traced], [finish for _, finish in traced]) as settling:
            results = await self._store.finish(finishes, wait=False)
            settling.settled(results)
            return results

    async def _breaks_connections(self, queued: _QueuedFinish, error: StateUnavailableError) -> bool:
        """Return whether it is this finish that breaks connections. If so, it is delayed, or rejected in the end."""
        if queued.size < _LARGE_FINISH:
            return False
        try:
            await self._store.lost_reasons([queued.finish.job.lease])
        except StateError:
            queued.connection_breaks = 0
            return False
        queued.connection_breaks += 1
        if queued.connection_breaks > _MAX_CONNECTION_BREAKS:
            message = f"a finish of {queued.size:,} characters breaks the connection to the store each time: {error}"
            self._fail(queued, StateError(message))
        else:
            self._delay(queued, self._backoff.delay(queued.connection_breaks))
        return True

    def _decide(self, batch: Sequence[_QueuedFinish], results: Sequence[FinishResult]) -> None:
        """Report the results of finishes. Those whose rows are locked are delayed."""
        reports: list[FinishReport] = []
        runners: list[AttemptRunner] = []
        characters = 0
        for queued, result in zip(batch, results, strict=True):
            if result.locked:
                self._retry_locked(queued)
                continue
            characters += queued.size
            queued.size = 0
            if queued.indeterminate:
                result = presumed(queued.finish, result, self._types)
            if queued.decided:
                continue
            runner, future = queued.runner, queued.future
            if runner is not None:
                queued.decided = True
                reports.append((queued.finish, result, runner.duration, runner.held.claimed_at, runner))
                runners.append(runner)
            elif future is not None and not future.done():
                queued.decided = True
                future.set_result(result)
        self.characters -= characters
        if runners:
            self._report_finished(reports, runners)

    def _report_finished(self, reports: Sequence[FinishReport], runners: Sequence[AttemptRunner]) -> None:
        try:
            self._reporter.finished(reports)
        finally:
            for runner in runners:
                runner.cleanup()
            self._slots.start_next()

    def _retry_locked(self, queued: _QueuedFinish) -> None:
        """Send a finish again after a pause: a caller's transaction has locked its rows, perhaps for long."""
        queued.lock_retries += 1
        queued.notify_not_stuck()
        self._delay(queued, self._lock_backoff.delay(queued.lock_retries))

    def _delay(self, queued: _QueuedFinish, seconds: float) -> None:
        self._delayed.add(queued)
        self._event_loop.call_later(seconds, self._requeue, queued)

    def _requeue(self, queued: _QueuedFinish) -> None:
        if queued in self._delayed:
            self._delayed.discard(queued)
            self._add(queued)


def _stopped_error() -> StateUnavailableError:
    return StateUnavailableError("the worker stopped before the finish could be written")
