"""The event feed of a client: one thread reads the event log for all followers of the process.

A thread with a connection of its own reads the log in order, once a tick, however many followers there are, and puts
each event into the queues of those that it concerns. It runs while there are followers. A follower subscribes before
it reads anything by itself, so that no event is missed in between; see ``async_following.py``.

The queue of a follower is bounded. A follower that is too slow for it is told so, and reads the log by itself from its
last event until it has caught up: it holds up nobody, and misses nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakSet

from queuert._error_copies import copy_of
from queuert.client.wakeup import Wakeup
from queuert.errors import ClosedError, StateUnavailableError
from queuert.event_log import EventFilter, EventKind, JobEvent
from queuert.jobs import ChainState, ChainStatus
from queuert.notify.adapter import Notification, NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import LoopRecovered, StoreCallFailed
from queuert.state.adapter import StateAdapter
from queuert.state.paging import MAX_PAGE, PageRequest
from queuert.state.sync_store import Store

POLL = 1.0
"""Seconds between two reads of the log while no notification arrives."""

MIN_PAUSE = 0.05
"""Seconds between two reads of the log, however many notifications arrive."""

CHECK = 5.0
"""Seconds between two reads of the status of all followed chains. Their types may not log that they close."""

LINGER = 5.0
"""Seconds for which the thread stays without followers; often the next one comes soon."""

QUEUE = 1_000
"""The most events that wait for one follower."""

Key: TypeAlias = tuple[int, int]
"""The position of an event in the log: its ``tx`` and ``seq``."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a follower takes from its queue."""

    events: Iterable[JobEvent]
    passed: tuple[Key, str] | None
    """If there are no events: the last event that the feed has read, and its cursor. None of those before match."""


class EventSubscription:
    """The queue of one follower. The feed fills it, in its thread; the follower empties it.

    Attributes:
        cursor: the position after which the queue gets all events; None until the feed has begun to read.
        closed: whether the follower has left.
    """

    def __init__(self, feed: EventFeed, filter: EventFilter, wake: Callable[[], None]) -> None:
        self.filter = filter
        self.cursor: str | None = None
        self.closed = False
        self.wake = wake
        self.chain_missing = False
        """Whether the followed chain did not exist when the feed looked for it."""
        self.closed_before: int | None = None
        """A number that all events up to the end of the followed chain are below; None while the chain is open."""
        self._feed = feed
        self._queue: deque[JobEvent] = deque()
        self._overflowed = False
        self._ended = False
        self._error: Exception | None = None

    def close(self) -> None:
        """Unsubscribe, and wake the follower. Idempotent."""
        # The feed removes it in its next tick: the garbage collector may close one within a loop over all of them. For
        # the same reason no lock is taken here. From then on the feed would not wake who waits for the queue.
        self.closed = True
        self.wake()

    def take(self) -> Taken:
        """Return the events that have come since the last call, in order."""
        with self._feed.lock:
            events, self._queue = self._queue, deque()
            return Taken(events, None if events or self._overflowed else self._feed.passed)

    def take_overflow(self) -> bool:
        """Return whether events were dropped since the last call; from now on the queue gets all again."""
        with self._feed.lock:
            overflowed, self._overflowed = self._overflowed, False
        return overflowed

    def check_ended(self) -> bool:
        """Return whether the followed chain has ended, and the queue has got its last event.

        Raises:
            QueuertError: the feed cannot go on; see ``follow_events``.
        """
        with self._feed.lock:
            if self._queue or self._overflowed:
                return False
            if self._error is not None:
                raise copy_of(self._error)
            return self._ended

    # Called by the feed, which has its lock.

    def join(self, cursor: str) -> None:
        """Say from where on the queue gets all events."""
        self.cursor = cursor
        self.wake()

    def put(self, event: JobEvent) -> None:
        """Add an event that matches; if there is no room, drop all."""
        if self._overflowed or self.closed:
            return
        if len(self._queue) >= QUEUE:
            self._queue.clear()
            self._overflowed = True
        else:
            self._queue.append(event)
        self.wake()

    def end(self, error: Exception | None = None) -> None:
        """Say that nothing will follow, or why nothing can."""
        self._ended, self._error = True, error
        self.wake()


class EventFeed:
    """Reads the event log in a thread while there are subscriptions, which may be made and closed by any thread."""

    def __init__(self, state: StateAdapter, notify: NotifyAdapter, observers: Observers) -> None:
        self._state = state
        self._notify = notify
        self._observers = observers
        # Re-entrant, because the garbage collector may close a follower anywhere.
        self.lock = threading.RLock()
        self._subscriptions: WeakSet[EventSubscription] = WeakSet()
        self._cursor: str | None = None
        """The end of what was read; None while the thread does not read."""
        self.passed: tuple[Key, str] | None = None
        """The last event that was read since the thread began to read, and its cursor."""
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._check_all_at = 0.0
        self._to_check: set[str] = set()
        """The chains whose status is to be read in the next tick."""

    def subscribe(self, filter: EventFilter, wake: Callable[[], None]) -> EventSubscription:
        """Return a new subscription; ``wake`` is called whenever it has changed, and must not block.

        Raises:
            ClosedError: the client is closed.
            RuntimeError: the process can start no thread more. The feed is as before the call.
        """
        subscription = EventSubscription(self, filter, wake)
        with self.lock:
            if self._closed:
                raise ClosedError("the client is closed: create a new one")
            self._subscriptions.add(subscription)
            if filter.chain_id is not None:
                self._to_check.add(filter.chain_id)
            if self._cursor is not None:
                subscription.join(self._cursor)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="queuert-events", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    self._subscriptions.discard(subscription)
                    raise
                # Only now: whoever comes next would wait for a thread that does not run.
                self._thread = thread
        self._wakeup.set()
        return subscription

    def close(self) -> None:
        """End the thread, and let all followers raise ClosedError. Idempotent."""
        with self.lock:
            self._closed = True
            thread = self._thread
            self._end_all(ClosedError("the client was closed"))
        self._stop.set()
        self._wakeup.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(LINGER)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with ExitStack() as closing:
                for topic in (Topic.CHAINS, Topic.JOBS):
                    closing.callback(self._notify.subscribe(topic, self._on_notification).close)
                store = self._state.sync_store(max_connections=1)
                closing.callback(store.close)
                self._read(store)
        except BaseException as error:
            with self.lock:
                if self._thread is not threading.current_thread():
                    # It had no followers any more, and those that have come since have another thread.
                    raise
                # The next follower gets a new thread.
                self._thread = None
                self._end_all(
                    error if isinstance(error, Exception) else RuntimeError(f"the thread has ended: {error!r}")
                )

    def _read(self, store: Store) -> None:
        """Read the log for as long as there are subscriptions."""
        is_open, failures = False, 0
        while self._has_work():
            try:
                if not is_open:
                    store.open()
                    is_open = True
                self._tick(store)
                if failures:
                    self._observers.emit(LoopRecovered(worker="client", loop="follow", failures=failures))
                    failures = 0
            except StateUnavailableError as error:
                failures += 1
                failed = StoreCallFailed(worker="client", operation="follow", error=str(error), failures=failures)
                self._observers.emit(failed)
            except Exception as error:
                with self.lock:
                    self._end_all(error)
            self._stop.wait(MIN_PAUSE)
            self._wakeup.wait(POLL)

    def _has_work(self) -> bool:
        """Wait for a subscription, if there is none. Return False, for the thread to end, if none comes."""
        idle_since = time.monotonic()
        while True:
            with self.lock:
                for subscription in [one for one in self._subscriptions if one.closed]:
                    self._subscriptions.discard(subscription)
                if self._subscriptions and not self._closed:
                    return True
                self._cursor = self.passed = None
                pause = idle_since + LINGER - time.monotonic()
                if self._closed or pause <= 0:
                    self._thread = None
                    return False
            self._wakeup.wait(pause)

    def _end_all(self, error: Exception) -> None:
        for subscription in self._subscriptions:
            subscription.end(error)
        self._subscriptions.clear()
        self._cursor = self.passed = None

    def _on_notification(self, notification: Notification) -> None:
        """Called by the thread of the notification adapter."""
        if notification.topic is Topic.CHAINS:
            with self.lock:
                followed = {one.filter.chain_id for one in self._subscriptions if one.filter.chain_id is not None}
                self._to_check |= followed if notification.keys is None else notification.keys & followed
        self._wakeup.set()

    def _tick(self, store: Store) -> None:
        """Read what the log has got since the last tick."""
        if self._cursor is None:
            cursor = store.event_log_end().cursor
            with self.lock:
                self._cursor = cursor
                for subscription in self._subscriptions:
                    subscription.join(cursor)
        self._check_chains(store)
        closing = self._closing()
        # Read first: what is below `settled` now is on the pages that are read next.
        settled = store.event_log_end().settled if closing else 0
        next_cursor: str | None = self._cursor
        while next_cursor is not None and not self._closed:
            page = store.list_events(EventFilter(), PageRequest(MAX_PAGE, next_cursor, oldest_first=True))
            next_cursor = page.next_cursor
            self._dispatch(page.items)
        with self.lock:
            for subscription in closing:
                if subscription.closed_before is not None and subscription.closed_before <= settled:
                    subscription.end()

    def _dispatch(self, events: Sequence[JobEvent]) -> None:
        with self.lock:
            by_chain: dict[str, list[EventSubscription]] = {}
            others: list[EventSubscription] = []
            for subscription in self._subscriptions:
                chain_id = subscription.filter.chain_id
                (others if chain_id is None else by_chain.setdefault(chain_id, [])).append(subscription)
            for event in events:
                followers = by_chain.get(event.chain_id, ())
                for subscription in (*followers, *others):
                    if subscription.filter.matches(event):
                        subscription.put(event)
                if followers and event.kind == EventKind.DELETED:
                    self._to_check.add(event.chain_id)
                    self._wakeup.set()
            if events:
                self._cursor = events[-1].cursor
                self.passed = (events[-1].tx, events[-1].seq), self._cursor

    def _check_chains(self, store: Store) -> None:
        """Read the status of followed chains: of those that notifications named, and now and then of all."""
        now = time.monotonic()
        with self.lock:
            by_chain: dict[str, list[EventSubscription]] = {}
            for subscription in self._subscriptions:
                if subscription.filter.chain_id is not None and subscription.closed_before is None:
                    by_chain.setdefault(subscription.filter.chain_id, []).append(subscription)
            wanted = by_chain.keys() if now >= self._check_all_at else by_chain.keys() & self._to_check
            ids = list(wanted)
            self._to_check.clear()
        if now >= self._check_all_at:
            self._check_all_at = now + CHECK
        states: dict[str, ChainState | None] = {}
        for first in range(0, len(ids), MAX_PAGE):
            part = ids[first : first + MAX_PAGE]
            states |= zip(part, store.get_chain_states(part), strict=True)
        closed = {id: state for id, state in states.items() if state is None or state.status is not ChainStatus.OPEN}
        if closed:
            written = store.event_log_end().written
            with self.lock:
                for id, state in closed.items():
                    for subscription in by_chain[id]:
                        subscription.closed_before, subscription.chain_missing = written, state is None

    def _closing(self) -> list[EventSubscription]:
        with self.lock:
            return [one for one in self._subscriptions if one.closed_before is not None]
