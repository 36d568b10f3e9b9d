"""A worker's entry in the worker registry: told again and again, and taken away at the end.

Nothing depends on it. What goes wrong with it is an event, and is tried again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from queuert.limits import Limits
from queuert.observability.adapter import Observers
from queuert.observability.events import StoreCallFailed
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.workers import WorkerHeartbeat, WorkerState

TTL = 60.0
"""Seconds that a worker is listed after a beat: two may be lost."""

EVERY = 20.0
"""Seconds between two beats."""

AGAIN = 5.0
"""Seconds until a beat that failed is tried again."""


@cache
def installed_version() -> str:
    """The version of Queuert, as far as it is installed."""
    try:
        return metadata.version("queuert")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that is told of. Read from several threads."""

    holder: str
    name: str
    job_types: tuple[str, ...]
    concurrency: int
    held: Callable[[], int]
    stopping: Callable[[], bool]
    limits: Mapping[str, Limits] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def beat(self) -> WorkerHeartbeat:
        """What there is to tell of it now."""
        return WorkerHeartbeat(
            id=self.holder,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=installed_version(),
            job_types=self.job_types,
            concurrency=self.concurrency,
            running=self.held(),
            uptime=time.monotonic() - self.begun,
            state=WorkerState.STOPPING if self.stopping() else WorkerState.RUNNING,
            limits=self.limits,
        )


class Heartbeat:
    """Tells the registry of a worker: once in its event loop, and then in the thread that renews its leases."""

    def __init__(self, subject: WorkerInfo, *, observers: Observers) -> None:
        self._subject = subject
        self._observers = observers
        self._next = 0.0
        self._begun = False
        self.error: Exception | None = None
        """Why the last heartbeat failed; None if it was recorded."""
        self._lock = threading.Lock()

    async def begin(self, store: AsyncStore) -> None:
        """The first beat, before the first claim. If it fails, the worker goes to work all the same."""
        self._begun = True
        try:
            await store.record_heartbeat(self._subject.beat(), TTL)
        except Exception as error:
            self._failed(error)
        else:
            self.error = None
            self._next = time.monotonic() + EVERY

    async def call_off(self, store: AsyncStore) -> None:
        """Take away the entry of a worker that was stopped before it went to work."""
        try:
            await store.remove_worker(self._subject.holder)
        except Exception as error:
            self._failed(error)

    def renew_now(self) -> None:
        """There is news: the next beat is due. From any thread."""
        with self._lock:
            self._next = 0.0

    def beat_if_due(self, store: Callable[[], Store]) -> float:
        """Tell of the worker, if it is time; seconds until it is time again. Never raises."""
        with self._lock:
            now = time.monotonic()
            if self._next > now:
                return self._next - now
            # News that comes while this beat is under way makes another one due.
            self._next = now + EVERY
        self._begun = True
        try:
            store().record_heartbeat(self._subject.beat(), TTL)
        except Exception as error:
            with self._lock:
                self._next = min(self._next, now + AGAIN)
            self._failed(error)
        else:
            self.error = None
        return max(0.0, self._next - time.monotonic())

    def forget(self, store: Callable[[], Store]) -> None:
        """Take the entry away: the worker has stopped. Never raises; what is left behind is not listed for long."""
        if not self._begun:
            return
        try:
            store().remove_worker(self._subject.holder)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.error = error
        what = f"{type(error).__name__}: {error}"
        self._observers.emit(StoreCallFailed(worker=self._subject.holder, operation="record_heartbeat", error=what))
