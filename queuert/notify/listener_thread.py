"""The thread that keeps the connections for notifications: it connects, serves, and connects again when they are
lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from queuert.notify.adapter import Notification, Topic
from queuert.notify.outbox import Outbox
from queuert.notify.subscribers import Subscribers
from queuert.notify.waker import Waker
from queuert.observability.adapter import Observers
from queuert.observability.events import Event, ListenerLost, ListenerRestored, NotificationDropped
from queuert.policies import Backoff

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
        self._session: Session | None = None
        self._stopping = False
        self._was_up = False
        self._failures = 0
        self._reported: str | None = None
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

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification as soon as the connection is free."""
        if self.pending.add(topic, keys):
            self.waker.ring()

    def look_again(self) -> None:
        """Somebody came or left."""
        self.waker.ring()

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive at present."""
        session = self._session
        return session is not None and session.healthy

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._serve():
                pass
            if self.pending:
                self.dropped("the adapter was closed before its last notifications could be sent")
        finally:
            self.waker.close()

    def _serve(self) -> bool:
        """Connect and serve until that fails or somebody stops us; whether to go on."""
        if self._stopping and not self.pending:
            return False
        try:
            self._converse()
        # A subscriber or observer may raise anything, and this thread must not die of it.
        except BaseException as error:
            self._lost(error)
        return not self._stopping

    def _converse(self) -> None:
        session = self._session = self._begin(self)
        self._was_up = True
        try:
            while not self._stopping:
                session.turn()
            session.send(_LAST_SEND)
        finally:
            self._session = None
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
            for topic in self.subscribers.topics():
                self.subscribers.dispatch(Notification(topic, None))

    def _report(self, error: str, retry_in: float) -> None:
        """Once for each kind of trouble: what is tried every few seconds would fill the log."""
        if error != self._reported:
            self._reported = error
            self._emit(ListenerLost(adapter=self._adapter, error=error, retry_in=retry_in))

    def _emit(self, event: Event) -> None:
        for observers in self._observers:
            observers.emit(event)

    # --- what the session reports -------------------------------------------------------------------------------------

    def works(self) -> None:
        """Notifications arrive: the trouble, if there was any, is over."""
        if self._reported is not None:
            self._reported = None
            self._emit(ListenerRestored(adapter=self._adapter))

    def on_silent(self, error: str, retry_in: float) -> None:
        """Notifications do not arrive on this connection."""
        self._report(error, retry_in)

    def dropped(self, error: str) -> None:
        """Notifications could not be sent."""
        self._emit(NotificationDropped(adapter=self._adapter, error=error))
