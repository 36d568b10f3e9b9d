"""What is done on one connection, from the first query to the loss: test, listen, send, probe."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import psycopg

from queuert.notify.adapter import Notification, Topic
from queuert.notify.encoding import decode, encode
from queuert.notify.outbox import Batch, Outbox
from queuert.notify.postgres.connection import QueryRejected, Wire
from queuert.notify.postgres.piggyback import channel_of
from queuert.notify.postgres.throttle import NotifyThrottle
from queuert.notify.subscribers import Subscribers
from queuert.notify.timeouts import ListenerTimeouts

# Nobody needs a notification after a crash, so its commit need not wait for the disk. Set for this one transaction,
# because a setting of the session would get lost in a pooler.
_QUICKLY = "set_config('synchronous_commit', 'off', true)"

# Read-only transaction: this is a standby, or became one. Another connection may lead to the primary.
_READ_ONLY = "25006"

DEAF = (
    "a notification sent as a test did not arrive; most likely the connection goes through a pooler in transaction"
    " mode. Give a connection string that leads to Postgres itself, as listen_dsn. Until then everybody polls"
)


class Owner(Protocol):
    """Who is told how the session fares."""

    def works(self) -> None:
        """Notifications arrive, or nobody wants any."""

    def on_silent(self, error: str, retry_in: float) -> None:
        """The connection stands, but notifications do not arrive on it."""

    def dropped(self, error: str) -> None:
        """Notifications could not be sent."""


@dataclass
class _Test:
    """A notification to oneself that is under way."""

    channel: str
    deadline: float


class Session:
    """One connection's state. All methods belong to the listener's thread, except ``healthy``."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        *,
        schema: str,
        subscribers: Subscribers,
        pending: Outbox,
        gathering: NotifyThrottle,
        times: ListenerTimeouts,
        owner: Owner,
    ) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: that did not work.
        """
        self._wire = connect()
        self._connect = connect
        self._schema = schema
        self._subscribers = subscribers
        self._pending = pending
        self._gathering = gathering
        self._times = times
        self._owner = owner
        self._topics = {channel_of(schema, topic): topic for topic in Topic}
        self._listening: frozenset[Topic] = frozenset()
        self._passed = False
        self._test: _Test | None = None
        self._retest_at = 0.0
        self._tidy_at: float | None = None
        self.began_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, as far as anybody wants them."""
        return self._passed or not self._subscribers.topics()

    def close(self) -> None:
        """Disconnect."""
        self._wire.close()

    def turn(self) -> None:
        """Do all there is to do, then wait for more.

        Raises:
            psycopg.OperationalError: the connection is lost.
            QueryRejected: the server does not let us listen.
        """
        self._keep_listening()
        if self.healthy:
            self._owner.works()
        if self._pending and self._gathering.depart(time.monotonic()):
            self.send(self._times.answer)
        if time.monotonic() >= self._wire.last_received + self._times.probe:
            self._wire.ask("SELECT 1", limit=self._times.answer)
        self._wire.wait(self._next_deadline() - time.monotonic())
        self._hear()

    def send(self, limit: float) -> None:
        """Send what is pending, within ``limit`` seconds. What a lost connection leaves unsent is pending again.

        Raises:
            psycopg.OperationalError: the connection is lost.
        """
        batch = self._pending.take()
        if not batch:
            return
        try:
            self._send(batch, limit)
        except psycopg.OperationalError:
            self._pending.put_back(batch)
            raise
        except Exception as error:
            self._owner.dropped(str(error))
        self._gathering.arrive(time.monotonic(), sum(1 if keys is None else len(keys) for keys in batch.values()))

    def _send(self, batch: Batch, limit: float) -> None:
        texts = [(channel_of(self._schema, topic), text) for topic, keys in batch.items() for text in encode(keys)]
        try:
            _notify(self._wire, texts, limit)
        except QueryRejected as refusal:
            if refusal.sqlstate == _READ_ONLY:
                raise psycopg.OperationalError(str(refusal)) from refusal
            raise

    # --- listening ----------------------------------------------------------------------------------------------------

    def _keep_listening(self) -> None:
        wanted = self._subscribers.topics()
        if wanted and not self._passed:
            self._advance_self_test()
        if self._passed:
            self._listen(wanted - self._listening)
            self._unlisten_idle(self._listening - wanted)

    def _listen(self, topics: frozenset[Topic]) -> None:
        if not topics:
            return
        self._command("LISTEN", topics)
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
            self._command("UNLISTEN", topics)
            self._listening -= topics
            self._tidy_at = None

    def _command(self, verb: str, topics: frozenset[Topic]) -> None:
        channels = sorted(channel_of(self._schema, topic) for topic in topics)
        self._wire.ask(";".join(f'{verb} "{channel}"' for channel in channels), limit=self._times.answer)

    def _next_deadline(self) -> float:
        deadlines = [self._wire.last_received + self._times.probe]
        if self._tidy_at is not None:
            deadlines.append(self._tidy_at)
        if self._pending:
            deadlines.append(self._gathering.next_at)
        if not self.healthy:
            deadlines.append(self._retest_at if self._test is None else self._test.deadline)
        return min(deadlines)

    def _hear(self) -> None:
        """Tell the subscribers what arrived: one notification a topic, however many notifications there were."""
        heard: dict[Topic, frozenset[str] | None] = {}
        for channel, text in self._wire.take_notifications():
            topic = self._topics.get(channel)
            if topic is not None:
                keys, before = decode(text), heard.get(topic, frozenset())
                heard[topic] = None if keys is None or before is None else before | keys
            elif self._test is not None and channel == self._test.channel:
                self._pass()
        for topic, keys in heard.items():
            self._subscribers.dispatch(Notification(topic, keys))

    # --- the self-test ------------------------------------------------------------------------------------------------

    def _advance_self_test(self) -> None:
        now = time.monotonic()
        if self._test is None and now >= self._retest_at:
            self._begin_test()
            self._hear()  # On a direct connection the notification came with the answer.
        elif self._test is not None and now >= self._test.deadline:
            self._fail()

    def _begin_test(self) -> None:
        channel = f"{self._schema}_test_{secrets.token_hex(8)}"
        answer = self._wire.ask(f'LISTEN "{channel}"; SELECT pg_backend_pid()', limit=self._times.answer)
        if answer == [[str(self._wire.backend_pid)]]:
            _notify(self._wire, [(channel, "")], self._times.answer)
        else:
            # There is a pooler. In transaction mode a notification to oneself would pass by chance, since it comes
            # while the pooler still lends us its sender; one from elsewhere comes when it no longer does.
            sender = self._connect()
            try:
                _notify(sender, [(channel, "")], self._times.answer)
            finally:
                sender.close()
        self._test = _Test(channel, time.monotonic() + self._times.self_test)

    def _pass(self) -> None:
        if self._test is not None:
            self._passed = True
            self._wire.ask(f'UNLISTEN "{self._test.channel}"', limit=self._times.answer)
            self._test = None

    def _fail(self) -> None:
        self._test = None
        self._retest_at = time.monotonic() + self._times.retest
        self._owner.on_silent(DEAF, self._times.retest)
        # The pooler's connection should not go on listening for nobody.
        self._wire.ask("UNLISTEN *", limit=self._times.answer)


def _notify(wire: Wire, texts: Sequence[tuple[str, str]], limit: float) -> None:
    """Send texts on their channels.

    Calls in a row take the server half the time of a query over a list. NOTIFY would be quicker still, but to
    pg_stat_statements, which tells statements apart, each of its texts would be a statement of its own.
    """
    calls = (f"pg_notify(${number}, ${number + 1})" for number in range(1, 2 * len(texts), 2))
    wire.ask(f"SELECT {', '.join((_QUICKLY, *calls))}", [part for pair in texts for part in pair], limit=limit)
