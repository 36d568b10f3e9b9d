"""What the attempts of one worker share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuert.errors import ClosedError
from queuert.job_types import JobTypes
from queuert.notify.adapter import NotifyAdapter
from queuert.observability.adapter import Observers
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.state.types import Finish
from queuert.worker.batches import Batches
from queuert.worker.leases import LeaseRegistry
from queuert.worker.processes.executor import HandlerProcesses
from queuert.worker.telemetry import AttemptReporter
from queuert.worker.threads import HandlerThreads


@dataclass(slots=True)
class WorkerContext:
    """The parts of a running worker, as its attempts see them."""

    worker: str
    event_loop: asyncio.AbstractEventLoop
    state: StateAdapter
    store: AsyncStore
    job_types: JobTypes
    notify: NotifyAdapter
    observers: Observers
    reports: AttemptReporter
    book: LeaseRegistry
    submit: Callable[[Finish, Any], None]
    """Have this finish of an attempt written, and tell its runner."""
    threads: HandlerThreads
    processes: HandlerProcesses
    batches: Batches
    thread_connections: int
    stopping: Callable[[], bool]
    renew_now: Callable[[Sequence[str]], None]
    """Renew the leases of these jobs at once."""
    handled: Callable[[Any], None]
    """The handler of this attempt, which calls this, has ended: its place is free."""
    give_back: Callable[[Any], None]
    """This attempt, which calls this, does not begin: its job is released, and no attempt is counted."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Run this beside everything else."""
    over: Callable[[Any], None]
    """Nothing of this attempt is left to be done."""
    _thread_store: Store | None = None
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def thread_store(self) -> Store:
        """The store for handlers that run in threads, opened when the first of them asks.

        Raises:
            ClosedError: the worker has stopped, and left the handler behind: nobody would close it.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the worker has stopped")
            if self._thread_store is None:
                store = self.state.sync_store(max_connections=self.thread_connections)
                store.open()
                self._thread_store = store
            return self._thread_store

    def close_thread_store(self) -> None:
        """Let go of the threads' connections, for good."""
        with self._lock:
            self._closed = True
            store, self._thread_store = self._thread_store, None
        if store is not None:
            store.close()
