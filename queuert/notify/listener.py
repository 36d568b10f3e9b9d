"""The common parts of the adapters that receive notifications in a thread.

``ListeningNotify`` is the adapter. While it is open, its ``Listener`` is a thread that connects, runs a session until
the connection is lost, and connects again. A ``ListenSession`` tests that notifications arrive, listens, sends what is
in the ``Outbox``, and dispatches to the ``Subscribers`` what it receives.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Protocol, TypeAlias

from queuert.errors import ConfigurationError
from queuert.notify.adapter import Notification, NotificationCallback, Subscription, Topic
from queuert.notify.encoding import decode, encode
from queuert.notify.fork_safety import reset_in_children
from queuert.observability.adapter import Observers
from queuert.observability.events import Event, ListenerLost, ListenerRestored, NotificationDropped
from queuert.policies import Backoff


@dataclass(frozen=True, slots=True)
class ListenerTimeouts:
    """Timeouts and intervals of the listening connection, in seconds. The defaults suit production.

    Raises:
        ConfigurationError: one of them is not above 0.
    """

    answer: float = 10.0
    """Wait for an answer; without one the connection counts as lost."""
    self_test: float = 5.0
    """Wait for the notification of the self-test; without it notifications count as not arriving."""
    retest: float = 60.0
    """Pause between a self-test that failed and the next one."""
    probe: float = 30.0
    """Silence of the server after which a query checks the connection."""
    linger: float = 5.0
    """Time for which a channel without subscribers is still listened on; often the next one subscribes at once."""
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses between attempts to connect."""

    def __post_init__(self) -> None:
        for timeout in fields(self):
            value = getattr(self, timeout.name)
            if timeout.name != "backoff" and not value > 0:
                raise ConfigurationError(f"{timeout.name} must be above 0 seconds, got {value}")


class Waker:
    """Wakes a thread that waits for it, perhaps together with other descriptors. Any thread may call ``wake``.

    Several calls before the next ``clear`` count as one. After ``close`` they do nothing.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self.descriptor = self._reader.fileno()
        """Is readable from ``wake`` to the next ``clear``."""
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._woken = False
        self._closed = False
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return the descriptor that is readable from ``wake`` to the next ``clear``."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with self._lock:
            if not self._woken and not self._closed:
                self._woken = True
                with suppress(BlockingIOError):
                    self._writer.send(b"!")

    def clear(self) -> None:
        """Reset it. Look for work *after* this, so that none is missed."""
        with self._lock:
            self._woken = False
            with suppress(BlockingIOError):
                self._reader.recv(64)

    def wait(self, timeout: float) -> None:
        """Wait until it is woken, at most ``timeout`` seconds, and clear it."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)
        self.clear()

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            self._closed = True
            self._reader.close()
            self._writer.close()


Batch: TypeAlias = Mapping[Topic, Set[str] | None]
"""The keys to be sent, by topic; None stands for all keys of the topic."""

MAX_KEYS = 2_000
"""The most keys of one topic; more of them become a notification about all keys."""

MAX_KEY_LENGTH = 4_000
"""In characters; a longer key takes too much memory, and would not fit into a notification."""


class Outbox:
    """The notifications that are to be sent, of bounded size. Any thread adds to it, one thread takes from it."""

    def __init__(self) -> None:
        self.keys: dict[Topic, set[str] | None] = {}
        """The keys that are to be sent, by topic. May be read without the lock."""
        # Re-entrant: the garbage collector may close a client, and so its adapter, in the middle of ``add``.
        self._lock = threading.RLock()

    def add(self, topic: Topic, keys: Iterable[str] | None) -> bool:
        """Add keys; None stands for all keys. Return whether it was empty before and is not now."""
        added = None if keys is None else set(islice(keys, MAX_KEYS + 1))
        if added is not None and not added:
            return False
        with self._lock:
            was_empty = not self.keys
            known = self.keys.setdefault(topic, set())
            if known is None or added is None or max(map(len, added)) > MAX_KEY_LENGTH:
                self.keys[topic] = None
            else:
                known |= added
                if len(known) > MAX_KEYS:
                    self.keys[topic] = None
            return was_empty

    def take(self) -> Batch:
        """Remove and return everything."""
        with self._lock:
            taken, self.keys = self.keys, {}
        return taken

    def restore(self, batch: Batch) -> None:
        """Add again what was taken and could not be sent."""
        for topic, keys in batch.items():
            self.add(topic, keys)


_logger = logging.getLogger("queuert.notify")


class Subscribers:
    """The subscriptions by topic. All methods may be called from any thread, and from a callback.

    Attributes:
        topics: the topics that have subscriptions.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called when a topic gets its first subscription, or loses its last."""
        self.topics: frozenset[Topic] = frozenset()
        self._on_change = on_change
        # Tuples, which are replaced and never changed: ``dispatch`` reads them without the lock.
        self._subscriptions: dict[Topic, tuple[_Subscription, ...]] = {}
        self._lock = threading.RLock()

    def add(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Subscribe a callback to a topic; one that is added twice is called twice."""
        subscription = _Subscription(self, topic, callback)
        with self._lock:
            before = self._subscriptions.get(topic, ())
            self._subscriptions[topic] = (*before, subscription)
            self.topics = frozenset(self._subscriptions)
        if not before:
            self._on_change()
        return subscription

    def dispatch(self, notification: Notification) -> None:
        """Call all callbacks of the topic. What they raise is written to the log ``queuert.notify``."""
        for subscription in self._subscriptions.get(notification.topic, ()):
            callback = subscription.callback
            if callback is not None:
                try:
                    callback(notification)
                except Exception:
                    _logger.exception("a subscriber of %s notifications raised", notification.topic.value)

    def remove(self, subscription: _Subscription) -> None:
        """Remove a subscription. Idempotent."""
        topic = subscription.topic
        with self._lock:
            before = self._subscriptions.get(topic, ())
            if subscription not in before:
                return
            index = before.index(subscription)
            remaining = (*before[:index], *before[index + 1 :])
            if remaining:
                self._subscriptions[topic] = remaining
            else:
                del self._subscriptions[topic]
                self.topics = frozenset(self._subscriptions)
        if not remaining:
            self._on_change()


class _Subscription:
    def __init__(self, subscribers: Subscribers, topic: Topic, callback: NotificationCallback) -> None:
        self.topic = topic
        self.callback: NotificationCallback | None = callback
        self._subscribers = subscribers

    def close(self) -> None:
        """Unsubscribe. A call of the callback may still be running in the adapter's thread."""
        self.callback = None  # A dispatch that began before may still have this subscription in its tuple.
        self._subscribers.remove(self)


_LAST_SEND = 0.8  # Seconds; less than a stopper waits.
_STOP = 0.95


class Session(Protocol):
    """The work of a listener from one connection to its loss. What a method raises counts as a loss."""

    @property
    def began_at(self) -> float:
        """When it connected, on the monotonic clock."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive; True while nobody subscribes."""
        ...

    def run_once(self) -> None:
        """Listen, send and dispatch what is due, then wait for the server or for the waker."""
        ...

    def send(self, timeout: float) -> None:
        """Send what is in the outbox, within ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Listener:
    """The thread of an adapter, from ``open`` to ``close``. It is not started twice."""

    def __init__(
        self, adapter: str, backoff: Backoff, subscribers: Subscribers, connect: Callable[[Listener], Session]
    ) -> None:
        """``connect`` makes a session; ``adapter`` is the name in events."""
        self._adapter = adapter
        self._backoff = backoff
        self._connect = connect
        self.subscribers = subscribers
        self.outbox = Outbox()
        self.waker = Waker()
        self._observers: tuple[Observers, ...] = ()
        self.session: Session | None = None
        """The session, while there is a connection."""
        self._stopping = False
        self._was_connected = False
        self._failures = 0
        self.reported_error: str | None = None
        """The last error that was emitted; None while notifications arrive."""
        self._thread = threading.Thread(target=self._run, name="queuert-notify", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        try:
            self._thread.start()
        except BaseException:
            self.waker.close()
            raise

    def stop(self) -> None:
        """Send what is in the outbox and end, within a second. A thread that is connecting ends after that."""
        self._stopping = True
        self.waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP)

    def add_observers(self, observers: Observers) -> None:
        """Emit events to these observers, too."""
        if all(observers is not known for known in self._observers):
            self._observers = (*self._observers, observers)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._run_session():
                pass
            if self.outbox.keys:
                self.on_dropped("the adapter was closed before its last notifications could be sent")
        finally:
            self.waker.close()

    def _run_session(self) -> bool:
        """Connect, and serve until the connection is lost, or until ``stop``. Return whether to connect again."""
        if self._stopping and not self.outbox.keys:
            return False
        try:
            self._connect_and_serve()
        # A subscriber or observer may raise anything, and this thread must survive it.
        except BaseException as error:
            self._on_lost(error)
        return not self._stopping

    def _connect_and_serve(self) -> None:
        session = self.session = self._connect(self)
        self._was_connected = True
        try:
            while not self._stopping:
                session.run_once()
            session.send(_LAST_SEND)
        finally:
            self.session = None
            if time.monotonic() - session.began_at > self._backoff.max_delay:
                self._failures = 0
            session.close()

    def _on_lost(self, error: BaseException) -> None:
        self._failures += 1
        pause = self._backoff.delay(self._failures)
        if not self._stopping:
            self._report(str(error).strip() or repr(error), pause)
        self._wake_all()
        ends_at = time.monotonic() + pause
        while not self._stopping and (remaining := ends_at - time.monotonic()) > 0:
            self.waker.wait(remaining)

    def _wake_all(self) -> None:
        """Wake all subscribers once: without notifications they have to poll more often."""
        was_connected, self._was_connected = self._was_connected, False
        if was_connected and not self._stopping:
            for topic in self.subscribers.topics:
                self.subscribers.dispatch(Notification(topic, None))

    def _report(self, error: str, retry_in: float) -> None:
        """Emit an error, unless it is the last one again: retries every few seconds would fill the log."""
        if error != self.reported_error:
            self.reported_error = error
            self._emit(ListenerLost(adapter=self._adapter, error=error, retry_in=retry_in))

    def _emit(self, event: Event) -> None:
        for observers in self._observers:
            observers.emit(event)

    # --- what the session reports -------------------------------------------------------------------------------------

    def on_healthy(self) -> None:
        """Notifications arrive, perhaps again after an error."""
        if self.reported_error is not None:
            self.reported_error = None
            self._emit(ListenerRestored(adapter=self._adapter))

    def on_silent(self, error: str, retry_in: float) -> None:
        """Notifications do not arrive on this connection."""
        self._report(error, retry_in)

    def on_dropped(self, error: str) -> None:
        """Notifications could not be sent."""
        self._emit(NotificationDropped(adapter=self._adapter, error=error))


@dataclass
class _SelfTest:
    """A notification that the session has sent to itself, to see whether it arrives."""

    channel: str
    text: str
    deadline: float


class ListenSession(ABC):
    """A session on a server that has channels: it tests itself, listens, sends and dispatches.

    A subclass connects in its ``__init__``, and implements the abstract methods on its connections. What they raise
    counts as a loss of the connection. All methods are called in the listener's thread, except ``healthy``.
    """

    def __init__(
        self, listener: Listener, timeouts: ListenerTimeouts, channel_prefix: str, *, silent_error: str
    ) -> None:
        """``silent_error`` is the error that is emitted when the self-test fails."""
        self._listener = listener
        self._subscribers = listener.subscribers
        self._outbox = listener.outbox
        self._timeouts = timeouts
        self._silent_error = silent_error
        self._channels = {topic: f"{channel_prefix}{topic.value}" for topic in Topic}
        self._topics = {channel: topic for topic, channel in self._channels.items()}
        self._listening: frozenset[Topic] = frozenset()
        self._test_passed = False
        self._test: _SelfTest | None = None
        self._retest_at = 0.0
        self._unlisten_at: float | None = None
        self.began_at = time.monotonic()

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    def _may_send(self) -> bool:
        """Return whether the outbox may be sent now; the caller sends it then."""

    @abstractmethod
    def _send(self, texts: Sequence[tuple[str, str]], timeout: float) -> None:
        """Send texts on their channels, within ``timeout`` seconds. If it raises, they return to the outbox."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait for the server or the waker, until :meth:`_next_deadline`. Query a server that has been silent."""

    @abstractmethod
    def _take_received(self) -> list[tuple[str, str]]:
        """Return the channels and texts that have arrived since the last call."""

    @abstractmethod
    def _subscribe(self, channels: Sequence[str]) -> None:
        """Listen on these channels."""

    @abstractmethod
    def _unsubscribe(self, channels: Sequence[str]) -> None:
        """Stop listening on these channels."""

    @abstractmethod
    def _begin_test(self) -> tuple[str, str]:
        """Listen on a channel, send a text to it, and return both."""

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive; True while nobody subscribes."""
        return self._test_passed or not self._subscribers.topics

    def run_once(self) -> None:
        """Listen, send and dispatch what is due, then wait for the server or for the waker."""
        self._keep_listening()
        if self._listener.reported_error is not None and self.healthy:
            self._listener.on_healthy()
        if self._outbox.keys and self._may_send():
            self.send(self._timeouts.answer)
        self._wait()
        self._dispatch_received()

    def send(self, timeout: float) -> None:
        """Send the outbox, within ``timeout`` seconds. If the connection is lost, it is restored."""
        batch = self._outbox.take()
        if not batch:
            return
        texts = [(self._channels[topic], text) for topic, keys in batch.items() for text in encode(keys)]
        try:
            self._send(texts, timeout)
        except BaseException:
            self._outbox.restore(batch)
            raise

    def _dispatch_received(self) -> None:
        """Dispatch what has arrived: one notification per topic, however many texts there are."""
        keys_by_topic: dict[Topic, frozenset[str] | None] = {}
        for channel, text in self._take_received():
            topic = self._topics.get(channel)
            if topic is not None:
                keys, before = decode(text), keys_by_topic.get(topic, frozenset())
                keys_by_topic[topic] = None if keys is None or before is None else before | keys
            elif self._test is not None and (channel, text) == (self._test.channel, self._test.text):
                self._test = None
                self._test_passed = True
                self._unsubscribe([channel])
        for topic, keys in keys_by_topic.items():
            self._subscribers.dispatch(Notification(topic, keys))

    def _next_deadline(self, *others: float) -> float:
        """Return when there is something to do again: the first of ``others``, the self-test, and channels to leave."""
        deadline = min(others)
        if self._unlisten_at is not None:
            deadline = min(deadline, self._unlisten_at)
        if not self._test_passed and self._subscribers.topics:
            deadline = min(deadline, self._retest_at if self._test is None else self._test.deadline)
        return deadline

    def _keep_listening(self) -> None:
        wanted = self._subscribers.topics
        if wanted and not self._test_passed:
            self._advance_self_test()
        if not self._test_passed:
            return
        if not wanted <= self._listening:
            self._listen(wanted - self._listening)
        if wanted != self._listening or self._unlisten_at is not None:
            self._unlisten_idle(self._listening - wanted)

    def _listen(self, topics: frozenset[Topic]) -> None:
        self._subscribe([self._channels[topic] for topic in sorted(topics)])
        self._listening |= topics
        for topic in topics:
            # Notifications between the subscription and this moment were not received.
            self._subscribers.dispatch(Notification(topic, None))

    def _unlisten_idle(self, topics: frozenset[Topic]) -> None:
        now = time.monotonic()
        if not topics:
            self._unlisten_at = None
        elif self._unlisten_at is None:
            self._unlisten_at = now + self._timeouts.linger
        elif now >= self._unlisten_at:
            self._unsubscribe([self._channels[topic] for topic in sorted(topics)])
            self._listening -= topics
            self._unlisten_at = None

    def _advance_self_test(self) -> None:
        now = time.monotonic()
        if self._test is None and now >= self._retest_at:
            self._test = _SelfTest(*self._begin_test(), deadline=now + self._timeouts.self_test)
            self._dispatch_received()  # On a direct connection it has arrived with the answer.
        elif self._test is not None and now >= self._test.deadline:
            self._fail(self._silent_error)

    def _fail(self, error: str) -> None:
        """Notifications do not arrive: report it, and test again later. Clients and workers poll meanwhile."""
        self._test_passed = False
        self._test = None
        self._retest_at = time.monotonic() + self._timeouts.retest
        self._listener.on_silent(error, self._timeouts.retest)


# A forked child's copies of its parent's listeners. They are kept: to collect one could close the parent's session.
_inherited: list[Listener] = []


class ListeningNotify:
    """A notify adapter with one thread while it is open. In a forked child it is closed and has no subscribers."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._open_count = 0
        # Re-entrant, because the garbage collector may close a client, and so this adapter, anywhere.
        self._lock = threading.RLock()
        self._subscribers = Subscribers(self._on_change)

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        raise NotImplementedError

    def reset_after_fork(self) -> None:
        """Return to the state of a new adapter. Called in forked children only."""
        if self._listener is not None:
            _inherited.append(self._listener)
            self._listener = None
        self._reset()

    def open(self, observers: Observers) -> None:
        """Begin to connect, in the background. Calls are counted: as many calls of ``close`` end it.

        It does not wait. While the server cannot be reached, it tries again; all observers that were passed so far
        receive the events.

        Raises:
            OSError: the process can open no file or socket more.
            RuntimeError: it can start no thread more. After both the adapter is as before the call.
        """
        with self._lock:
            listener = self._listener
            if listener is None:
                listener = self._new_listener(self._subscribers)
                listener.add_observers(observers)
                listener.start()
                self._listener = listener
            else:
                listener.add_observers(observers)
            self._open_count += 1

    def close(self) -> None:
        """Send what is pending and disconnect, within a second. Calls beyond those of ``open`` do nothing."""
        with self._lock:
            self._open_count = max(0, self._open_count - 1)
            if self._open_count:
                return
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification at once, or together with others as soon as the connection is free, each key once.

        It never blocks, and never raises. While the connection is lost, a bounded number of keys is kept; more of them
        become one notification about all keys. It does nothing while the adapter is closed.
        """
        listener = self._listener
        if listener is not None and listener.outbox.add(topic, keys):
            listener.waker.wake()

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with each notification of the topic, from the adapter's thread. It must not block.

        It is called once with ``keys=None`` when listening has begun, and after each loss of the connection, since
        notifications may have been missed. What it raises is written to the log ``queuert.notify``, and other callbacks
        are called. A subscription can be made before ``open``, and remains after ``close``.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive now. While they do not, clients and workers poll more often."""
        session = None if self._listener is None else self._listener.session
        return session is not None and session.healthy

    def _on_change(self) -> None:
        """A topic got its first subscription, or lost its last."""
        listener = self._listener
        if listener is not None:
            listener.waker.wake()
