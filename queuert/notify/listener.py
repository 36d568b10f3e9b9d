"""What the adapters that listen on a connection have in common."""

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
    """Limits and intervals of the listening connection, in seconds. The defaults suit production.

    Raises:
        ConfigurationError: one of them is not above 0.
    """

    answer: float = 10.0
    """The longest wait for an answer, after which the connection counts as lost."""
    self_test: float = 5.0
    """The longest wait for a notification to oneself, after which notifications count as not arriving here."""
    retest: float = 60.0
    """The pause before that is tried again."""
    probe: float = 30.0
    """The silence after which the server is asked whether it is there."""
    linger: float = 5.0
    """How long a channel is still listened on after its last subscriber left: the next one often comes at once."""
    backoff: Backoff = field(default_factory=Backoff)
    """The pauses between attempts to connect."""

    def __post_init__(self) -> None:
        for timeout in fields(self):
            value = getattr(self, timeout.name)
            if timeout.name != "backoff" and not value > 0:
                raise ConfigurationError(f"{timeout.name} must be above 0 seconds, got {value}")


class Waker:
    """Rung by any thread, watched by one, which can wait for it together with other descriptors.

    Rings before the next ``clear`` count once. After ``close`` ringing does nothing.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self.descriptor = self._reader.fileno()
        """Is readable from the first ring to the next ``clear``."""
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._rung = False
        self._closed = False
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """The descriptor that is readable from the first ring to the next ``clear``."""
        return self._reader.fileno()

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        with self._lock:
            if not self._rung and not self._closed:
                self._rung = True
                with suppress(BlockingIOError):
                    self._writer.send(b"!")

    def clear(self) -> None:
        """Forget the rings so far. Look at what they may have been about *after* this."""
        with self._lock:
            self._rung = False
            with suppress(BlockingIOError):
                self._reader.recv(64)

    def wait(self, timeout: float) -> None:
        """Wait for a ring, at most ``timeout`` seconds, and clear it."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)
        self.clear()

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            self._closed = True
            self._reader.close()
            self._writer.close()


Batch: TypeAlias = Mapping[Topic, Set[str] | None]
"""What goes out together; None stands for all keys of the topic."""

MAX_KEYS = 2_000
"""Of one topic; beyond, everybody is told to look at everything."""

MAX_KEY_LENGTH = 4_000
"""In characters; a longer key is not worth its memory, nor would it fit into a notification."""


class Outbox:
    """A bounded set of notifications, filled by any thread and emptied by one."""

    def __init__(self) -> None:
        self.keys: dict[Topic, set[str] | None] = {}
        """What waits, to be looked at without the lock; empty if nothing does."""
        # Re-entrant: the garbage collector may close a client, and so its adapter, in the middle of an addition.
        self._lock = threading.RLock()

    def add(self, topic: Topic, keys: Iterable[str] | None) -> bool:
        """Add keys, or all with None; whether there was nothing before and there is something now."""
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
        """Take out all there is."""
        with self._lock:
            taken, self.keys = self.keys, {}
        return taken

    def put_back(self, batch: Batch) -> None:
        """Return what was taken and could not be sent."""
        for topic, keys in batch.items():
            self.add(topic, keys)


_logger = logging.getLogger("queuert.notify")


class Subscribers:
    """A list of callbacks for each topic; every method may be called from any thread, and from a callback.

    Attributes:
        topics: those that have subscribers.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called when a topic gets its first subscriber, or loses its last."""
        self.topics: frozenset[Topic] = frozenset()
        self._on_change = on_change
        # Tuples, replaced as a whole: whoever calls them holds no lock, and sees no change under way.
        self._subscriptions: dict[Topic, tuple[_Subscription, ...]] = {}
        self._lock = threading.RLock()

    def add(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Put a callback on the topic's list; one that is added twice is called twice."""
        subscription = _Subscription(self, topic, callback)
        with self._lock:
            before = self._subscriptions.get(topic, ())
            self._subscriptions[topic] = (*before, subscription)
            self.topics = frozenset(self._subscriptions)
        if not before:
            self._on_change()
        return subscription

    def dispatch(self, notification: Notification) -> None:
        """Call everybody on the topic's list; who raises is written to the log ``queuert.notify``."""
        for subscription in self._subscriptions.get(notification.topic, ()):
            callback = subscription.callback
            if callback is not None:
                try:
                    callback(notification)
                except Exception:
                    _logger.exception("a subscriber of %s notifications raised", notification.topic.value)

    def remove(self, subscription: _Subscription) -> None:
        """Take a subscription off its list, if it is there."""
        topic = subscription.topic
        with self._lock:
            before = self._subscriptions.get(topic, ())
            if subscription not in before:
                return
            at = before.index(subscription)
            after = (*before[:at], *before[at + 1 :])
            if after:
                self._subscriptions[topic] = after
            else:
                del self._subscriptions[topic]
                self.topics = frozenset(self._subscriptions)
        if not after:
            self._on_change()


class _Subscription:
    def __init__(self, subscribers: Subscribers, topic: Topic, callback: NotificationCallback) -> None:
        self.topic = topic
        self.callback: NotificationCallback | None = callback
        self._subscribers = subscribers

    def close(self) -> None:
        """Leave; a call that has begun already may still be under way in the adapter's thread."""
        self.callback = None  # A dispatch that began before may still hold this subscription.
        self._subscribers.remove(self)


_LAST_SEND = 0.8  # Seconds; less than a stopper waits.
_STOP = 0.95


class Session(Protocol):
    """What is done from a connection to its loss. What it raises is a loss, and is told."""

    @property
    def began_at(self) -> float:
        """When it was connected, on the monotonic clock."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, as far as anybody wants them."""
        ...

    def turn(self) -> None:
        """Do all there is to do, then wait for more, or for the waker."""
        ...

    def send(self, limit: float) -> None:
        """Send what is pending, within ``limit`` seconds."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Listener:
    """One supervised thread, from an adapter's ``open`` to its ``close``. It is not started twice."""

    def __init__(
        self, adapter: str, backoff: Backoff, subscribers: Subscribers, begin: Callable[[Listener], Session]
    ) -> None:
        """``begin`` connects; ``adapter`` is the name in events."""
        self._adapter = adapter
        self._backoff = backoff
        self._begin = begin
        self.subscribers = subscribers
        self.pending = Outbox()
        self.waker = Waker()
        self._observers: tuple[Observers, ...] = ()
        self.session: Session | None = None
        """While there is a connection."""
        self._stopping = False
        self._was_up = False
        self._failures = 0
        self.reported: str | None = None
        """The trouble that was told last; None while notifications arrive."""
        self._thread = threading.Thread(target=self._run, name="queuert-notify", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is pending and end, within a second. A thread that is just connecting ends when it is done."""
        self._stopping = True
        self.waker.ring()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP)

    def tell(self, observers: Observers) -> None:
        """Tell these observers too, from now on."""
        if all(observers is not known for known in self._observers):
            self._observers = (*self._observers, observers)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._serve():
                pass
            if self.pending.keys:
                self.dropped("the adapter was closed before its last notifications could be sent")
        finally:
            self.waker.close()

    def _serve(self) -> bool:
        """Connect and serve until that fails or somebody stops us; whether to go on."""
        if self._stopping and not self.pending.keys:
            return False
        try:
            self._converse()
        # A subscriber or observer may raise anything, and this thread must not die of it.
        except BaseException as error:
            self._lost(error)
        return not self._stopping

    def _converse(self) -> None:
        session = self.session = self._begin(self)
        self._was_up = True
        try:
            while not self._stopping:
                session.turn()
            session.send(_LAST_SEND)
        finally:
            self.session = None
            if time.monotonic() - session.began_at > self._backoff.max_delay:
                self._failures = 0
            session.close()

    def _lost(self, error: BaseException) -> None:
        self._failures += 1
        pause = self._backoff.delay(self._failures)
        if not self._stopping:
            self._report(str(error).strip() or repr(error), pause)
        self._wake_all()
        until = time.monotonic() + pause
        while not self._stopping and (remaining := until - time.monotonic()) > 0:
            self.waker.wait(remaining)

    def _wake_all(self) -> None:
        """Let sleepers look once, and then sleep for shorter: they had counted on notifications."""
        was_up, self._was_up = self._was_up, False
        if was_up and not self._stopping:
            for topic in self.subscribers.topics:
                self.subscribers.dispatch(Notification(topic, None))

    def _report(self, error: str, retry_in: float) -> None:
        """Once for each kind of trouble: what is tried every few seconds would fill the log."""
        if error != self.reported:
            self.reported = error
            self._emit(ListenerLost(adapter=self._adapter, error=error, retry_in=retry_in))

    def _emit(self, event: Event) -> None:
        for observers in self._observers:
            observers.emit(event)

    # --- what the session reports -------------------------------------------------------------------------------------

    def works(self) -> None:
        """Notifications arrive: the trouble, if there was any, is over."""
        if self.reported is not None:
            self.reported = None
            self._emit(ListenerRestored(adapter=self._adapter))

    def on_silent(self, error: str, retry_in: float) -> None:
        """Notifications do not arrive on this connection."""
        self._report(error, retry_in)

    def dropped(self, error: str) -> None:
        """Notifications could not be sent."""
        self._emit(NotificationDropped(adapter=self._adapter, error=error))


@dataclass
class _SelfTest:
    """A notification to oneself that is under way."""

    channel: str
    text: str
    deadline: float


class ListenSession(ABC):
    """A session on a server that has channels: tests itself, listens, sends and dispatches.

    A subclass says how: it connects in its ``__init__``, and its methods below do one thing each on its connections.
    What they raise is a loss of the session. All methods belong to the listener's thread, except ``healthy``.
    """

    def __init__(self, listener: Listener, times: ListenerTimeouts, channel_prefix: str, *, on_deaf: str) -> None:
        """``on_deaf`` is the error that is told when a test did not arrive."""
        self._listener = listener
        self._subscribers = listener.subscribers
        self._pending = listener.pending
        self._times = times
        self._on_deaf = on_deaf
        self._channels = {topic: f"{channel_prefix}{topic.value}" for topic in Topic}
        self._topics = {channel: topic for topic, channel in self._channels.items()}
        self._listening: frozenset[Topic] = frozenset()
        self._passed = False
        self._test: _SelfTest | None = None
        self._retest_at = 0.0
        self._tidy_at: float | None = None
        self.began_at = time.monotonic()

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    def _may_send(self) -> bool:
        """Whether what is pending may be sent now; if so it is sent."""

    @abstractmethod
    def _send(self, texts: Sequence[tuple[str, str]], limit: float) -> None:
        """Send texts on their channels, within ``limit`` seconds. What it raises leaves them pending."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait for the server or the waker, until :meth:`_next_deadline`; probe a server that is silent."""

    @abstractmethod
    def _received(self) -> list[tuple[str, str]]:
        """The channels and texts that have arrived since the last time."""

    @abstractmethod
    def _join(self, channels: Sequence[str]) -> None:
        """Listen on these channels."""

    @abstractmethod
    def _leave(self, channels: Sequence[str]) -> None:
        """Listen on these channels no more."""

    @abstractmethod
    def _begin_test(self) -> tuple[str, str]:
        """Listen on a channel and send a text to it; both."""

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, as far as anybody wants them."""
        return self._passed or not self._subscribers.topics

    def turn(self) -> None:
        """Do all there is to do, then wait for more."""
        self._keep_listening()
        if self._listener.reported is not None and self.healthy:
            self._listener.works()
        if self._pending.keys and self._may_send():
            self.send(self._times.answer)
        self._wait()
        self._dispatch_received()

    def send(self, limit: float) -> None:
        """Send what is pending, within ``limit`` seconds. What a lost connection leaves unsent is pending again."""
        batch = self._pending.take()
        if not batch:
            return
        texts = [(self._channels[topic], text) for topic, keys in batch.items() for text in encode(keys)]
        try:
            self._send(texts, limit)
        except BaseException:
            self._pending.put_back(batch)
            raise

    def _dispatch_received(self) -> None:
        """Tell the subscribers what arrived: one notification a topic, however many texts there were."""
        received: dict[Topic, frozenset[str] | None] = {}
        for channel, text in self._received():
            topic = self._topics.get(channel)
            if topic is not None:
                keys, before = decode(text), received.get(topic, frozenset())
                received[topic] = None if keys is None or before is None else before | keys
            elif self._test is not None and (channel, text) == (self._test.channel, self._test.text):
                self._test = None
                self._passed = True
                self._leave([channel])
        for topic, keys in received.items():
            self._subscribers.dispatch(Notification(topic, keys))

    def _next_deadline(self, *others: float) -> float:
        """When there is something to do again, at the latest: at one of ``others``, or for the listening."""
        deadline = min(others)
        if self._tidy_at is not None:
            deadline = min(deadline, self._tidy_at)
        if not self._passed and self._subscribers.topics:
            deadline = min(deadline, self._retest_at if self._test is None else self._test.deadline)
        return deadline

    def _keep_listening(self) -> None:
        wanted = self._subscribers.topics
        if wanted and not self._passed:
            self._advance_test()
        if not self._passed:
            return
        if not wanted <= self._listening:
            self._listen(wanted - self._listening)
        if wanted != self._listening or self._tidy_at is not None:
            self._unlisten_idle(self._listening - wanted)

    def _listen(self, topics: frozenset[Topic]) -> None:
        self._join([self._channels[topic] for topic in sorted(topics)])
        self._listening |= topics
        for topic in topics:
            # What happened between their subscription and this moment was not heard.
            self._subscribers.dispatch(Notification(topic, None))

    def _unlisten_idle(self, topics: frozenset[Topic]) -> None:
        now = time.monotonic()
        if not topics:
            self._tidy_at = None
        elif self._tidy_at is None:
            self._tidy_at = now + self._times.linger
        elif now >= self._tidy_at:
            self._leave([self._channels[topic] for topic in sorted(topics)])
            self._listening -= topics
            self._tidy_at = None

    def _advance_test(self) -> None:
        now = time.monotonic()
        if self._test is None and now >= self._retest_at:
            self._test = _SelfTest(*self._begin_test(), deadline=now + self._times.self_test)
            self._dispatch_received()  # On a direct connection it came with the answer.
        elif self._test is not None and now >= self._test.deadline:
            self._fail(self._on_deaf)

    def _fail(self, error: str) -> None:
        """Notifications do not arrive: everybody polls until the next test."""
        self._passed = False
        self._test = None
        self._retest_at = time.monotonic() + self._times.retest
        self._listener.on_silent(error, self._times.retest)


# A child's copies of its parent's listeners. Kept, since collecting one could say good-bye on the parent's socket.
_inherited: list[Listener] = []


class ListeningNotify:
    """A notify adapter that is one thread while it is open. A forked child begins with one that is closed."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._begin()
        reset_in_children(self)

    def _begin(self) -> None:
        self._opened = 0
        # Re-entrant, because the garbage collector may close a client, and so this, anywhere.
        self._lock = threading.RLock()
        self._subscribers = Subscribers(self._on_change)

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        raise NotImplementedError

    def reset_after_fork(self) -> None:
        """Forget everything, as a forked child must; not for use by others."""
        if self._listener is not None:
            _inherited.append(self._listener)
            self._listener = None
        self._begin()

    def open(self, observers: Observers) -> None:
        """Begin to connect, in the background. Counted: the last ``close`` ends it.

        It does not wait and does not fail: a server that cannot be reached is an event, told to all observers given
        so far, and is tried again.
        """
        with self._lock:
            self._opened += 1
            if self._listener is None:
                self._listener = self._new_listener(self._subscribers)
                self._listener.tell(observers)
                self._listener.start()
            else:
                self._listener.tell(observers)

    def close(self) -> None:
        """Send what is pending and disconnect, within a second. Too many closes do nothing; ``open`` begins again."""
        with self._lock:
            self._opened = max(0, self._opened - 1)
            if self._opened:
                return
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification at once, or together with others as soon as the connection is free, each key once.

        Never blocks, never raises. While the connection is lost a bounded number of notifications is kept; more than
        that become one notification to look at everything. Does nothing while the adapter is not open.
        """
        listener = self._listener
        if listener is not None and listener.pending.add(topic, keys):
            listener.waker.ring()

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with every notification of the topic, from the adapter's thread: be quick.

        It is called once with ``keys=None`` when listening has begun, and after each loss of the connection: look
        then for what was missed. What it raises goes to the log ``queuert.notify`` and disturbs nobody. Subscribing
        is possible before ``open``, and outlasts ``close``.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive at present. Where they do not, sleepers poll more often."""
        session = None if self._listener is None else self._listener.session
        return session is not None and session.healthy

    def _on_change(self) -> None:
        """A topic got its first subscriber, or lost its last."""
        listener = self._listener
        if listener is not None:
            listener.waker.ring()
