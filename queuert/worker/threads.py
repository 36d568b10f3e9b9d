"""Threads for plain functions. They are daemons: one that hangs in user code must not keep the process running."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from queuert.errors import ClosedError
from queuert.state.adapter import StateAdapter
from queuert.state.sync_store import Store
from queuert.worker import forks
from queuert.worker.django_connections import close_all_connections, close_old_connections

T = TypeVar("T")

_Work = Callable[[], None]


class HandlerThreads:
    """Runs handlers in threads. It has as many threads as handlers ran at once so far, and reuses them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = 0
        self._count = 0
        self._closed = False
        self._lock = threading.RLock()
        """Reentrant: while a thread starts, the garbage collector may close coroutines, and these may run something."""

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, in the caller's context, and return what it returns or raises.

        If the caller is cancelled, the function goes on: a thread cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            generation = forks.generation
            close_old_connections()
            try:
                try:
                    result = context.run(function)
                finally:
                    if forks.generation != generation:
                        forks.end_child()
            except (StopIteration, GeneratorExit) as error:
                # A future cannot carry them: one would end the generator that awaits it, the other would close it.
                raised = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
                raised.__cause__ = error
                _set_result(loop, future, raised, failed=True)
            except BaseException as error:
                _set_result(loop, future, error, failed=True)
            else:
                _set_result(loop, future, result, failed=False)
            # After the result is set: a connection that hangs when it is closed blocks only this thread.
            close_old_connections()

        self._submit(work)
        return await future

    def _submit(self, work: _Work) -> None:
        with self._lock:
            if self._closed:
                # A function that outlives the worker may wait for this one, and the idle threads have ended.
                threading.Thread(target=_run_and_end, args=(work,), name=f"{self._name}-late", daemon=True).start()
                return
            if self._idle > 0:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                close_all_connections()
                return
            work()
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Let idle threads end; busy ones end after their function. Idempotent."""
        with self._lock:
            count, self._count, self._closed = self._count, 0, True
        for _ in range(count):
            self._work.put(None)


class ThreadStore:
    """The store for handlers that run in threads, opened by the first that needs it."""

    def __init__(self, state: StateAdapter, max_connections: int) -> None:
        self._state = state
        self._max_connections = max_connections
        self._store: Store | None = None
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Store:
        """Return the store, opened by the first call.

        Raises:
            ClosedError: the worker has stopped before its handler ended: nobody would close the store.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the worker has stopped: its handlers cannot open transactions any more")
            if self._store is None:
                store = self._state.sync_store(max_connections=self._max_connections)
                store.open()
                self._store = store
            return self._store

    def close(self) -> None:
        """Close the store for good."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()


def _run_and_end(work: _Work) -> None:
    work()
    close_all_connections()


def _set_result(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, *, failed: bool) -> None:
    def set_result() -> None:
        if not future.done():
            if failed:
                future.set_exception(value)
            else:
                future.set_result(value)

    try:
        loop.call_soon_threadsafe(set_result)
    except RuntimeError:
        return  # The loop is closed, since the worker has stopped.
