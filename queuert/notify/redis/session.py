"""What is done from a connection to its loss: test, listen, send, probe.

What has subscribed can do nothing else in the protocol that all servers speak. So there are two connections: one that
sends, from the start, and one that hears, as soon as anybody wants to.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from queuert.notify.adapter import Notification, Topic
from queuert.notify.encoding import decode, encode
from queuert.notify.listener import ListenerTimeouts, Outbox, Subscribers, Waker
from queuert.notify.redis.connection import Lost, Refused, Wire, wait

DEAF = (
    "a message published as a test did not arrive: connections to this address seem to lead to several servers, or"
    " through a proxy that does not pass messages on. Give the address of one server. Until then everybody polls"
)

REFUSED = (
    "the server refuses notifications ({error}): give this user the commands of @pubsub and the channels &{channels}*."
    " Until then everybody polls"
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
    """A message to oneself that is under way."""

    text: str
    deadline: float


class RedisSession:
    """The connections' state. All methods belong to the listener's thread, except ``healthy``."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        *,
        prefix: str,
        subscribers: Subscribers,
        pending: Outbox,
        waker: Waker,
        times: ListenerTimeouts,
        owner: Owner,
    ) -> None:
        """Connect.

        Raises:
            Lost: that did not work.
        """
        self._connect = connect
        self._prefix = prefix
        self._subscribers = subscribers
        self._pending = pending
        self._waker = waker
        self._times = times
        self._owner = owner
        self._topics = {channel_of(prefix, topic): topic for topic in Topic}
        self._test_channel = f"{prefix}test"
        self._listening: frozenset[Topic] = frozenset()
        self._passed = False
        self._test: _Test | None = None
        self._retest_at = 0.0
        self._tidy_at: float | None = None
        self._refusal: str | None = None
        self._subscriber: Wire | None = None
        self._sender = connect()
        self.began_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, as far as anybody wants them."""
        return self._passed or not self._subscribers.topics()

    def close(self) -> None:
        """Disconnect."""
        for wire in self._wires():
            wire.close()

    def turn(self) -> None:
        """Do all there is to do, then wait for more.

        Raises:
            Lost: a connection is lost.
        """
        self._keep_listening()
        if self.healthy:
            self._owner.works()
        self.send(self._times.answer)
        self._probe()
        self._wait()
        self._hear()

    def send(self, limit: float) -> None:
        """Send what is pending, within ``limit`` seconds. What a lost connection leaves unsent is pending again.

        Raises:
            Lost: the connection is lost.
        """
        batch = self._pending.take()
        if not batch:
            return
        texts = [(channel_of(self._prefix, topic), text) for topic, keys in batch.items() for text in encode(keys)]
        try:
            answers = self._sender.ask(*(["PUBLISH", channel, text] for channel, text in texts), limit=limit)
        except Lost:
            self._pending.put_back(batch)
            raise
        self._tell_refusals([answer for answer in answers if isinstance(answer, Refused)])

    def _tell_refusals(self, refusals: list[Refused]) -> None:
        """Once for each kind: whoever may not publish is refused every time."""
        refusal = str(refusals[0]) if refusals else None
        if refusal is not None and refusal != self._refusal:
            self._owner.dropped(REFUSED.format(error=refusal, channels=self._prefix))
        self._refusal = refusal

    def _wires(self) -> list[Wire]:
        return [self._sender] if self._subscriber is None else [self._sender, self._subscriber]

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _probe(self) -> None:
        quiet_since = time.monotonic() - self._times.probe
        if self._sender.last_received <= quiet_since:
            self._sender.ask(["PING"], limit=self._times.answer)
        if self._subscriber is not None and self._subscriber.last_received <= quiet_since:
            self._subscriber.ping(self._times.answer)

    def _wait(self) -> None:
        # What the driver or TLS holds already makes no socket readable. The sender expects nothing but a farewell.
        if not any(wire.collect() for wire in self._wires()):
            descriptors = [self._waker.fileno(), *(wire.fileno() for wire in self._wires())]
            wait(descriptors, self._next_deadline() - time.monotonic())
        self._waker.clear()

    def _next_deadline(self) -> float:
        deadlines = [wire.last_received + self._times.probe for wire in self._wires()]
        if self._tidy_at is not None:
            deadlines.append(self._tidy_at)
        if not self.healthy:
            deadlines.append(self._retest_at if self._test is None else self._test.deadline)
        return min(deadlines)

    def _hear(self) -> None:
        """Tell the subscribers what arrived: one notification a topic, however many messages there were."""
        heard: dict[Topic, frozenset[str] | None] = {}
        for wire in self._wires():
            wire.collect()
        for channel, text in () if self._subscriber is None else self._subscriber.take_messages():
            topic = self._topics.get(channel)
            if topic is not None:
                keys, before = decode(text), heard.get(topic, frozenset())
                heard[topic] = None if keys is None or before is None else before | keys
            elif self._test is not None and channel == self._test_channel and text == self._test.text:
                self._pass()
        for topic, keys in heard.items():
            self._subscribers.dispatch(Notification(topic, keys))

    # --- listening ----------------------------------------------------------------------------------------------------

    def _keep_listening(self) -> None:
        wanted = self._subscribers.topics()
        if wanted and not self._passed:
            self._advance_self_test()
        if self._passed:
            self._listen(wanted - self._listening)
            self._unlisten_idle(self._listening - wanted)

    def _listen(self, topics: frozenset[Topic]) -> None:
        if not topics or self._subscriber is None:
            return
        try:
            self._subscriber.join(*self._channels(topics), limit=self._times.answer)
        except Refused as refusal:
            self._passed = False
            self._fail(REFUSED.format(error=refusal, channels=self._prefix))
            return
        self._listening |= topics
        for topic in topics:
            # What happened between their subscription and this moment was not heard.
            self._subscribers.dispatch(Notification(topic, None))

    def _unlisten_idle(self, topics: frozenset[Topic]) -> None:
        now = time.monotonic()
        if not topics or self._subscriber is None:
            self._tidy_at = None
        elif self._tidy_at is None:
            self._tidy_at = now + self._times.linger
        elif now >= self._tidy_at:
            self._subscriber.leave(*self._channels(topics), limit=self._times.answer)
            self._listening -= topics
            self._tidy_at = None

    def _channels(self, topics: frozenset[Topic]) -> list[str]:
        return sorted(channel_of(self._prefix, topic) for topic in topics)

    # --- the self-test ------------------------------------------------------------------------------------------------

    def _advance_self_test(self) -> None:
        now = time.monotonic()
        if self._test is None and now >= self._retest_at:
            try:
                self._begin_test()
            except Refused as refusal:
                self._fail(REFUSED.format(error=refusal, channels=self._prefix))
        elif self._test is not None and now >= self._test.deadline:
            self._fail(DEAF)

    def _begin_test(self) -> None:
        if self._subscriber is None:
            self._subscriber = self._connect()
        self._subscriber.join(self._test_channel, limit=self._times.answer)
        text = secrets.token_hex(8)
        (answer,) = self._sender.ask(["PUBLISH", self._test_channel, text], limit=self._times.answer)
        if isinstance(answer, Refused):
            raise answer
        self._test = _Test(text, time.monotonic() + self._times.self_test)

    def _pass(self) -> None:
        if self._subscriber is not None:
            self._test = None
            self._passed = True
            self._subscriber.leave(self._test_channel, limit=self._times.answer)

    def _fail(self, error: str) -> None:
        self._test = None
        self._retest_at = time.monotonic() + self._times.retest
        self._owner.on_silent(error, self._times.retest)


def channel_of(prefix: str, topic: Topic) -> str:
    """The channel that carries the notifications of a topic."""
    return f"{prefix}{topic.value}"
