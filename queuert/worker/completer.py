"""Writes the finishes of attempts: what is ready goes together, many jobs a statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queuert.errors import StateError, StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import FinishesWritten, StoreCallFailed
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

_LARGEST_BATCH = 512
_LARGEST_CHARACTERS = 16 * 1024 * 1024
"""Of the texts that the finishes of one statement bring. A worker has three to four times that in memory for each
statement under way, and its event loop stands still while one is made."""

_CONCURRENT_FLUSHES = 2
"""Statements under way at once: the client prepares one while the server works on the other."""

_HEAVY = 1024 * 1024
_MOST_BREAKS = 3
"""A finish of so many characters may break the connection of its own statement so often, while the store answers
others, before it is refused: the server, or the way to it, does not take it."""


class _Pending:
    """A finish to be written."""

    __slots__ = ("breaks", "decided", "finish", "future", "indeterminate", "lock_retries", "runner", "size")

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
        """It was sent, and the answer was lost."""
        self.breaks = 0
        """How often a statement of its own broke the connection, one time after the other, though the store answered
        others: no other goes with it then."""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still wants to know of it."""
        return not self.decided and (self.future is None or not self.future.done())

    def notify_retry(self) -> None:
        """It will be sent again."""
        if self.runner is not None:
            self.runner.on_retry()

    def fail(self, error: Exception) -> None:
        """It is not written."""
        self.decided = True
        if self.runner is not None:
            self.runner.on_rejected(self.finish, error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Completer:
    """Groups finishes without waiting for more: those that come in while a statement is under way go with the next.

    A finish is sent until the store has answered. A broken connection leaves open whether it was written, and sending
    it again is safe: it is written only while the lease holds, and reported as written if it was. A batch that broke
    its connection is sent in halves; a large finish that breaks it alone gives way to others, and is rejected in the
    end.

    The reporter reports the finishes that were decided together. Then their runners are cleaned up, and slots that
    waited for them start the next attempts. ``types`` are the job types that the worker knows.
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
        self._pending: deque[_Pending] = deque()
        self._resting: set[_Pending] = set()
        """What is asked for again after a pause."""
        self.characters = 0
        """Of the texts of all finishes that are not written yet."""
        self._flush_now = asyncio.Event()
        """Is set while finishes are pending."""
        self._stopped = False
        self._locked = Backoff(initial_delay=0.05, max_delay=1.0)
        self._backoff = Backoff(initial_delay=0.05, max_delay=2.0)
        self.loops = [
            SupervisedLoop(f"completer-{lane}", self._step, worker=worker, observers=observers)
            for lane in range(1, _CONCURRENT_FLUSHES + 1)
        ]

    def start(self) -> None:
        """Begin to write."""
        for loop in self.loops:
            loop.start()

    async def stop(self) -> None:
        """Stop, after the last attempt: what is still pending is given up, and its leases will expire."""
        self._stopped = True
        try:
            # Together: each may take the time in which a driver gives up what was cancelled.
            await asyncio.gather(*(loop.stop() for loop in self.loops))
        finally:
            for one in self._resting.union(self._pending):
                self._fail(one, _too_late())
            self._resting.clear()
            self._pending.clear()

    def submit(self, finish: Finish, runner: AttemptRunner) -> None:
        """Write one finish. Its runner is called back in the event loop, never from within this call."""
        one = _Pending(finish, runner)
        if self._stopped:
            self._event_loop.call_soon(one.fail, _too_late())
        else:
            self._pending.append(one)
            self.characters += one.size
            self._flush_now.set()

    async def finish(self, finish: Finish) -> FinishResult:
        """Write one finish and wait until it is durable, or known to be lost.

        Raises:
            Exception: the store refuses this very finish: a continuation's id exists, its blocker does not.
            StateUnavailableError: the worker stopped first.
        """
        if self._stopped:
            raise _too_late()
        future: asyncio.Future[FinishResult] = self._event_loop.create_future()
        one: _Pending = _Pending(finish, None, future)
        self.characters += one.size
        self._add(one)
        return await future

    def _add(self, one: _Pending) -> None:
        if self._stopped:
            self._fail(one, _too_late())
        elif one.is_wanted:
            self._pending.append(one)
            self._flush_now.set()
        else:
            self._let_go(one)

    def _fail(self, one: _Pending, error: Exception) -> None:
        self._let_go(one)
        one.fail(error)

    def _let_go(self, one: _Pending) -> None:
        """It takes no memory any more."""
        self.characters -= one.size
        one.size = 0

    async def _step(self) -> None:
        await self._flush_now.wait()
        batch = self._taken()
        if not self._pending:
            self._flush_now.clear()
        try:
            if batch:
                await self._write(batch)
        except BaseException:
            self._pending.extendleft(reversed([one for one in batch if one.is_wanted and one not in self._resting]))
            self._flush_now.set()
            raise

    def _taken(self) -> list[_Pending]:
        """The next batch: of bounded size, and one at least."""
        pending, size = self._pending, 0
        batch: list[_Pending] = []
        while pending and len(batch) < _LARGEST_BATCH:
            one = pending[0]
            size += one.size
            if batch and (size > _LARGEST_CHARACTERS or one.breaks):
                break
            batch.append(pending.popleft())
            if one.breaks:
                break
        return batch

    async def _write(self, batch: Sequence[_Pending]) -> None:
        """Have the store decide about all of them; in parts, once it could not be reached with all of them."""
        left, most, failures = deque(batch), len(batch), 0
        while left:
            part = [left.popleft() for _ in range(min(most, len(left)))]
            sent_at = lease_time()
            try:
                finishes = [one.finish for one in part]
                if self._tracing is None:
                    results = await self._store.finish(finishes, wait=False)
                else:
                    results = await self._traced_finish(self._tracing, part, finishes)
            except StateUnavailableError as error:
                failures += 1
                self._report(error)
                for one in part:
                    one.indeterminate = True
                if len(part) > 1 or not await self._breaks(part[0], error):
                    left.extendleft(reversed(part))
                most = max(1, len(part) // 2)
                for one in (*part, *left):
                    one.notify_retry()
                await asyncio.sleep(self._backoff.delay(failures))
            except Exception as error:
                # One of them is refused: alone, it harms only itself. Others may have been written before it.
                if len(part) == 1:
                    self._fail(part[0], error)
                    continue
                for one in part:
                    one.indeterminate = True
                left.extendleft(reversed(part))
                most = 1
            else:
                failures, most = 0, 2 * most
                duration = lease_time() - sent_at
                self._decide(part, results)
                if self._observers.want(FinishesWritten):
                    written = FinishesWritten(worker=self._worker, count=len(part), duration=duration)
                    self._observers.emit(written)

    async def _traced_finish(
        self, tracing: Tracing, part: Sequence[_Pending], finishes: Sequence[Finish]
    ) -> list[FinishResult]:
        traced = [(trace, one.finish) for one in part if one.runner is not None and (trace := one.runner.trace)]
        if not traced:
            return await self._store.finish(finishes, wait=False)
        with tracing.settling([trace for trace, _ in traced], [finish for _, finish in traced]) as settling:
            results = await self._store.finish(finishes, wait=False)
            settling.settled(results)
            return results

    async def _breaks(self, one: _Pending, error: StateUnavailableError) -> bool:
        """Whether it is this finish that breaks connections, so that others go before it; in the end it is refused."""
        if one.size < _HEAVY:
            return False
        try:
            await self._store.lost_reasons([one.finish.job.lease])
        except StateError:
            one.breaks = 0
            return False
        one.breaks += 1
        if one.breaks > _MOST_BREAKS:
            message = f"a finish of {one.size:,} characters breaks the connection to the store each time: {error}"
            self._fail(one, StateError(message))
        else:
            self._rest(one, self._backoff.delay(one.breaks))
        return True

    def _decide(self, batch: Sequence[_Pending], results: Sequence[FinishResult]) -> None:
        """The store has decided about these finishes, except those whose rows are locked."""
        reports: list[FinishReport] = []
        runners: list[AttemptRunner] = []
        characters = 0
        for one, result in zip(batch, results, strict=True):
            if result.locked:
                self._retry_locked(one)
                continue
            characters += one.size
            one.size = 0
            if one.indeterminate:
                result = presumed(one.finish, result, self._types)
            if one.is_wanted:
                one.decided = True
                if one.runner is not None:
                    reports.append(FinishReport(one.finish, result, one.runner.duration, one.runner.held.claimed_at))
                    runners.append(one.runner)
                elif one.future is not None:
                    one.future.set_result(result)
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

    def _retry_locked(self, one: _Pending) -> None:
        """Ask for a finish again after a pause: a caller's transaction has its rows, and may have them for long."""
        one.lock_retries += 1
        one.notify_retry()
        self._rest(one, self._locked.delay(one.lock_retries))

    def _rest(self, one: _Pending, seconds: float) -> None:
        self._resting.add(one)
        self._event_loop.call_later(seconds, self._go_on, one)

    def _go_on(self, one: _Pending) -> None:
        if one in self._resting:
            self._resting.discard(one)
            self._add(one)

    def _report(self, error: Exception) -> None:
        self._observers.emit(StoreCallFailed(worker=self._worker, operation="finish", error=str(error)))


def _too_late() -> StateUnavailableError:
    return StateUnavailableError("the worker stopped before the finish could be written")
