"""The heartbeat of a worker: a row in the store that lists it as alive.

The row is informational: only leases decide about jobs. So a heartbeat that fails does not stop the worker: it emits an
event and is tried again.
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
from queuert.errors import RightMissingError, StateUnavailableError
from queuert.limits import Limits, TypeTraits
from queuert.observability.adapter import Observers
from queuert.observability.events import JobTypeUnhandled, LoopRecovered, StoreCallFailed
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.workers import HEARTBEAT_SECONDS, WorkerHeartbeat, WorkerState, claimed_types, stopping_workers

if TYPE_CHECKING:
    from queuert.worker.telemetry import ActivityCounter

TTL = 60.0
"""Seconds for which a worker is listed after a heartbeat: two in a row may be lost."""

INTERVAL = HEARTBEAT_SECONDS
"""Seconds between two heartbeats."""

_LOOKS_AFTER = 60.0
"""Seconds after which a worker looks who handles what its jobs continue with: a deployment has started the others by
then."""

RETRY_AFTER = 5.0
"""Seconds until a heartbeat that failed is tried again."""


@cache
def installed_version() -> str:
    """Return the version of the installed package, or ``unknown``."""
    try:
        return metadata.version("queuert")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a heartbeat says of a worker. Read from several threads."""

    holder: str
    name: str
    job_types: tuple[str, ...]
    concurrency: int
    running: Callable[[], int]
    stopping: Callable[[], bool]
    limits: Mapping[str, Limits] = field(default_factory=dict)
    traits: tuple[TypeTraits, ...] = ()
    known_types: tuple[str, ...] = ()
    needed_types: Mapping[str, str] = field(default_factory=dict)
    """Types that other workers must handle, each with one that continues with it or waits for it."""
    started_at: float = field(default_factory=time.monotonic)

    def heartbeat(self) -> WorkerHeartbeat:
        """Return the heartbeat to record now."""
        return WorkerHeartbeat(
            id=self.holder,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=installed_version(),
            job_types=self.job_types,
            concurrency=self.concurrency,
            running=self.running(),
            uptime=time.monotonic() - self.started_at,
            state=WorkerState.STOPPING if self.stopping() else WorkerState.RUNNING,
            limits=self.limits,
            traits=self.traits,
            known_types=self.known_types,
        )


class Heartbeat:
    """Records the heartbeat of a worker: at its start in its event loop, then in the thread that renews its leases.

    What the worker did goes with it: the counts of ``activity``.
    """

    def __init__(self, worker: WorkerInfo, *, observers: Observers, activity: ActivityCounter) -> None:
        self._worker = worker
        self._activity = activity
        self._collected_at = time.monotonic()
        self._store_ahead: float | None = None
        """The store's time, in seconds since 1970, less the monotonic clock; None before the first answer."""
        self._observers = observers
        self._next_at = 0.0
        self._may_be_listed = False
        """Whether a heartbeat was sent, so that there may be a row to remove."""
        self.error: Exception | None = None
        """Why the last heartbeat failed; None if it was recorded."""
        self._failures = 0
        """Heartbeats that failed in a row."""
        self._looked = not worker.needed_types
        """Whether it has looked for workers that handle the needed types."""
        self._looked_again = False
        """Whether it looks a second time, since workers of such a type were stopping."""
        self._lock = threading.Lock()

    async def record_first(self, store: AsyncStore) -> None:
        """Record the first heartbeat, before the first claim. If it fails, the worker starts all the same.

        A worker with lifespans records one before them, and another one when they are entered.

        Raises:
            RightMissingError: the login has not the role of workers. It could not claim either.
        """
        self._may_be_listed = True
        sent_at = time.monotonic()
        try:
            store_time = await store.record_heartbeat(self._worker.heartbeat(), TTL)
        except RightMissingError:
            raise
        except Exception as error:
            self._on_failure(error)
        else:
            self._on_answer(store_time, sent_at)
            self._next_at = time.monotonic() + INTERVAL

    async def withdraw(self, store: AsyncStore) -> None:
        """Remove the row of a worker that was stopped while it started."""
        try:
            await store.remove_worker(self._worker.holder)
        except Exception as error:
            self._on_failure(error)

    def renew_now(self) -> None:
        """Make the next heartbeat due, since the state of the worker has changed. From any thread."""
        with self._lock:
            self._next_at = 0.0

    def record_if_due(self, store: Callable[[], Store]) -> float:
        """Record a heartbeat, if one is due; return the seconds until this is to be called again. It never raises."""
        now = time.monotonic()
        self._collect(now)
        with self._lock:
            if self._next_at > now:
                return min(self._next_at - now, self._rest_of_minute(now))
            # A change of the state while this heartbeat is written makes another one due.
            self._next_at = now + INTERVAL
        self._may_be_listed = True
        try:
            report = self._activity.report(self._worker.holder)
            store_time = store().record_heartbeat(self._worker.heartbeat(), TTL, report)
        except Exception as error:
            with self._lock:
                self._next_at = min(self._next_at, now + RETRY_AFTER)
            self._on_failure(error)
        else:
            self._activity.confirmed()
            self._on_answer(store_time, now)
            if not self._looked and now - self._worker.started_at >= _LOOKS_AFTER and not self._worker.stopping():
                self._look_for_handlers(store)
        now = time.monotonic()
        return min(max(0.0, self._next_at - now), self._rest_of_minute(now))

    def _on_answer(self, store_time: datetime, sent_at: float) -> None:
        self.error = None
        if self._failures:
            failures, self._failures = self._failures, 0
            recovered = LoopRecovered(worker=self._worker.holder, loop="record_heartbeat", failures=failures)
            self._observers.emit(recovered)
        self._store_ahead = store_time.timestamp() - (sent_at + time.monotonic()) / 2

    def _look_for_handlers(self, store: Callable[[], Store]) -> None:
        """Warn of needed types that no live worker handles, once."""
        self._looked = True
        try:
            workers = store().list_workers()
            handled = claimed_types(workers)
            handled |= {one.type for one in store().list_type_traits() if one.completed_by_client}
        except StateUnavailableError:
            self._looked = False  # The next heartbeat tries it again.
            return
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._observers.emit(StoreCallFailed(worker=self._worker.holder, operation="list_workers", error=reason))
            return
        missing = {name: by for name, by in self._worker.needed_types.items() if name not in handled}
        if not self._looked_again and any(stopping_workers(workers, name) for name in missing):
            # In a deployment their successors may come a moment later.
            self._looked, self._looked_again = False, True
            return
        for name, needed_by in missing.items():
            self._observers.emit(JobTypeUnhandled(worker=self._worker.holder, type=name, needed_by=needed_by))

    def _collect(self, now: float) -> None:
        """Add what was counted since the last time to the minute of the store in the middle of it."""
        if self._store_ahead is None:
            return
        middle = (self._collected_at + now) / 2 + self._store_ahead
        self._collected_at = now
        dropped = self._activity.collect(int(middle // MINUTE))
        if dropped:
            error = f"the counts of {dropped} minutes and job types are dropped: the store has not taken any for long"
            self._observers.emit(StoreCallFailed(worker=self._worker.holder, operation="record_activity", error=error))

    def _rest_of_minute(self, now: float) -> float:
        """Seconds until the minute of the store ends."""
        return MINUTE if self._store_ahead is None else MINUTE - (now + self._store_ahead) % MINUTE

    def remove(self, store: Callable[[], Store]) -> None:
        """Report the rest of what the worker did, and remove the row, since the worker has stopped.

        It never raises; a row that remains expires after ``TTL``.
        """
        if not self._may_be_listed:
            return
        holder = self._worker.holder
        self._collect(time.monotonic())
        try:
            more = True
            while more:
                store().remove_worker(holder, self._activity.report(holder))
                more = self._activity.confirmed()
        except Exception as error:
            self._on_failure(error)

    def _on_failure(self, error: Exception) -> None:
        self.error = error
        self._failures += 1
        failed = StoreCallFailed(
            worker=self._worker.holder,
            operation="record_heartbeat",
            error=f"{type(error).__name__}: {error}",
            failures=self._failures,
        )
        self._observers.emit(failed)
