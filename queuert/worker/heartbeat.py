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
from datetime import datetime
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from queuert.activity import MINUTE
from queuert.limits import Limits
from queuert.observability.adapter import Observers
from queuert.observability.events import StoreCallFailed
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.workers import WorkerHeartbeat, WorkerState

if TYPE_CHECKING:
    from queuert.worker.telemetry import ActivityCounter

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
    """Tells the registry of a worker: once in its event loop, and then in the thread that renews its leases.

    What the worker did goes with it: the counts of ``activity``.
    """

    def __init__(self, subject: WorkerInfo, *, observers: Observers, activity: ActivityCounter) -> None:
        self._subject = subject
        self._activity = activity
        self._collected_at = time.monotonic()
        self._store_ahead: float | None = None
        """The store's time, in seconds since 1970, less the monotonic clock; None before the first answer."""
        self._observers = observers
        self._next = 0.0
        self._begun = False
        self.error: Exception | None = None
        """Why the last heartbeat failed; None if it was recorded."""
        self._lock = threading.Lock()

    async def begin(self, store: AsyncStore) -> None:
        """The first beat, before the first claim. If it fails, the worker goes to work all the same."""
        self._begun = True
        sent_at = time.monotonic()
        try:
            answered = await store.record_heartbeat(self._subject.beat(), TTL)
        except Exception as error:
            self._failed(error)
        else:
            self._on_answer(answered, sent_at)
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
        """Tell of the worker, if it is time; seconds until this is to be called again. Never raises."""
        now = time.monotonic()
        self._collect(now)
        with self._lock:
            if self._next > now:
                return min(self._next - now, self._rest_of_minute(now))
            # News that comes while this beat is under way makes another one due.
            self._next = now + EVERY
        self._begun = True
        try:
            answered = store().record_heartbeat(self._subject.beat(), TTL, self._activity.report(self._subject.holder))
        except Exception as error:
            with self._lock:
                self._next = min(self._next, now + AGAIN)
            self._failed(error)
        else:
            self._activity.confirmed()
            self._on_answer(answered, now)
        now = time.monotonic()
        return min(max(0.0, self._next - now), self._rest_of_minute(now))

    def _on_answer(self, store_time: datetime, sent_at: float) -> None:
        self.error = None
        self._store_ahead = store_time.timestamp() - (sent_at + time.monotonic()) / 2

    def _collect(self, now: float) -> None:
        """Add what was counted since the last time to the minute of the store in the middle of it."""
        if self._store_ahead is None:
            return
        middle = (self._collected_at + now) / 2 + self._store_ahead
        self._collected_at = now
        dropped = self._activity.collect(int(middle // MINUTE))
        if dropped:
            error = f"the counts of {dropped} minutes and job types are dropped: the store has not taken any for long"
            self._observers.emit(StoreCallFailed(worker=self._subject.holder, operation="record_activity", error=error))

    def _rest_of_minute(self, now: float) -> float:
        """Seconds until the minute of the store ends."""
        return MINUTE if self._store_ahead is None else MINUTE - (now + self._store_ahead) % MINUTE

    def forget(self, store: Callable[[], Store]) -> None:
        """Take the entry away, and tell the last of what it did: the worker has stopped.

        Never raises; what is left behind is not listed for long.
        """
        if not self._begun:
            return
        holder = self._subject.holder
        self._collect(time.monotonic())
        try:
            more = True
            while more:
                store().remove_worker(holder, self._activity.report(holder))
                more = self._activity.confirmed()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.error = error
        what = f"{type(error).__name__}: {error}"
        self._observers.emit(StoreCallFailed(worker=self._subject.holder, operation="record_heartbeat", error=what))
