"""Writes the endings of attempts: what is ready goes together, many jobs a statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import StateFailed
from queuert.policies import Backoff
from queuert.state.adapter import Finish, FinishResult
from queuert.state.async_store import AsyncStore
from queuert.worker.endings import presumed
from queuert.worker.supervisor import SupervisedLoop

_LARGEST_BATCH = 512
_LANES = 2
"""Statements under way at once: the client prepares one while the server works on the other."""

_MANY = 400
_PATIENCE = 0.05
"""While so many endings are being written, fewer wait for them and go with the next: a statement and its commit cost as
much for ten as for a hundred. But they wait for so many seconds at most, lest that statement hangs.
"""


class Author(Protocol):
    """Whoever has an ending to be written, and does not wait for it."""

    def asked_again(self) -> None:
        """The store could not be reached, or could not decide yet."""
        ...

    def refused(self, finish: Finish, error: Exception) -> None:
        """The store refuses this very ending, or the worker stopped first (StateUnavailableError)."""
        ...


A = TypeVar("A", bound=Author)


Written: TypeAlias = tuple[A, Finish, FinishResult]
"""An ending about which the store has decided, and whose it is."""


class _Pending(Generic[A]):
    """An ending to be written."""

    __slots__ = ("author", "decided", "finish", "future", "put_offs")

    def __init__(self, finish: Finish, author: A | None, future: asyncio.Future[FinishResult] | None = None) -> None:
        self.finish = finish
        self.author = author
        self.future = future
        self.put_offs = 0
        self.decided = False

    @property
    def asked_for(self) -> bool:
        """Whether anybody still wants to know of it."""
        return not self.decided and (self.future is None or not self.future.done())

    def go_on(self) -> None:
        """It will be asked for again."""
        if self.author is not None:
            self.author.asked_again()

    def fail(self, error: Exception) -> None:
        """It is not written."""
        self.decided = True
        if self.author is not None:
            self.author.refused(self.finish, error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Completer(Generic[A]):
    """Groups endings without waiting for more: what came in while a statement was under way goes with the next.

    An ending is asked for until the store has answered: a broken connection leaves its outcome open, and asking again
    is safe, since it is written only while the lease holds, and said to be written if it was.

    ``tell`` hears of the endings of authors that were decided together. ``types`` are those that the worker knows.
    """

    def __init__(
        self,
        store: AsyncStore,
        tell: Callable[[Sequence[Written[A]]], None],
        *,
        types: Sequence[str] = (),
        worker: str,
        observers: Observers,
    ) -> None:
        self._store = store
        self._tell = tell
        self._types = types
        self._worker = worker
        self._observers = observers
        self._event_loop = asyncio.get_running_loop()
        self._pending: deque[_Pending[A]] = deque()
        self._being_written = 0
        self._worth_it = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._stopped = False
        self._locked = Backoff(initial=0.05, maximum=1.0)
        self._backoff = Backoff(initial=0.05, maximum=2.0)
        self.loops = [
            SupervisedLoop(f"completer-{lane}", self._step, worker=worker, observers=observers)
            for lane in range(1, _LANES + 1)
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
            while self._pending:
                self._pending.popleft().fail(_too_late())
            self._look()

    def submit(self, finish: Finish, author: A) -> None:
        """Write one ending; its author is told, in the event loop, never from within this call."""
        one = _Pending(finish, author)
        if self._stopped:
            self._event_loop.call_soon(one.fail, _too_late())
        else:
            self._pending.append(one)
            if len(self._pending) in (1, _MANY):
                self._look()

    async def finish(self, finish: Finish) -> FinishResult:
        """Write one ending and wait until it is durable, or known to be lost.

        Raises:
            Exception: the store refuses this very ending: a continuation's id exists, its blocker does not.
            StateUnavailableError: the worker stopped first.
        """
        if self._stopped:
            raise _too_late()
        future: asyncio.Future[FinishResult] = self._event_loop.create_future()
        self._add(_Pending(finish, None, future))
        return await future

    def _add(self, one: _Pending[A]) -> None:
        if self._stopped:
            one.fail(_too_late())
        elif one.asked_for:
            self._pending.append(one)
            self._look()

    def _look(self) -> None:
        """Let what is pending be written, if that is worth a statement of its own by now."""
        if self._pending and self._being_written >= _MANY > len(self._pending):
            if self._patience is None:  # Not anew for each that comes.
                self._wait_a_little()
            return
        self._stop_waiting()
        if self._pending:
            self._worth_it.set()
        else:
            self._worth_it.clear()

    def _wait_a_little(self) -> None:
        try:
            self._patience = self._event_loop.call_later(_PATIENCE, self._worth_it.set)
        except MemoryError:
            self._worth_it.set()
        else:
            self._worth_it.clear()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _step(self) -> None:
        await self._worth_it.wait()
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _LARGEST_BATCH))]
        self._being_written += len(batch)
        try:
            self._stop_waiting()  # For those who are left it begins now.
            self._look()
            if batch:
                await self._write(batch)
        except BaseException:
            self._pending.extendleft(reversed([one for one in batch if one.asked_for]))
            raise
        finally:
            self._being_written -= len(batch)
            self._look()

    async def _write(self, batch: Sequence[_Pending[A]]) -> None:
        failures = 0
        while True:
            try:
                results = await self._store.finish([one.finish for one in batch], wait=False)
            except StateUnavailableError as error:
                failures += 1
                self._report(error)
                for one in batch:
                    one.go_on()
                await asyncio.sleep(self._backoff.delay(failures))
            except Exception as error:
                await self._write_apart(batch, error)
                return
            else:
                if failures:
                    results = [
                        presumed(one.finish, result, self._types) for one, result in zip(batch, results, strict=True)
                    ]
                self._decide(batch, results)
                return

    def _decide(self, batch: Sequence[_Pending[A]], results: Sequence[FinishResult]) -> None:
        written: list[Written[A]] = []
        for one, result in zip(batch, results, strict=True):
            if result.pending:
                self._put_off(one)
            elif one.asked_for:
                one.decided = True
                if one.author is not None:
                    written.append((one.author, one.finish, result))
                elif one.future is not None:
                    one.future.set_result(result)
        if written:
            self._tell(written)

    def _put_off(self, one: _Pending[A]) -> None:
        """Ask for an ending again after a pause: a caller's transaction has its rows, and may have them for long."""
        one.put_offs += 1
        one.go_on()
        self._event_loop.call_later(self._locked.delay(one.put_offs), self._add, one)

    async def _write_apart(self, batch: Sequence[_Pending[A]], error: Exception) -> None:
        # One of them is refused: alone, it harms only itself.
        if len(batch) == 1:
            batch[0].fail(error)
            return
        for one in batch:
            await self._write([one])

    def _report(self, error: Exception) -> None:
        self._observers.emit(StateFailed(worker=self._worker, operation="finish", error=str(error)))


def _too_late() -> StateUnavailableError:
    return StateUnavailableError("the worker stopped before the ending could be written")
