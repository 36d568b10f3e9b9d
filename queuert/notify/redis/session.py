"""What is done from a connection to its loss: test, listen, send, probe.

What has subscribed can do nothing else in the protocol that all servers speak. So there are two connections: one that
sends, from the start, and one that hears, as soon as anybody wants to.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from queuert.notify.adapter import Topic
from queuert.notify.listener import Listener, ListenerTimeouts, ListenSession
from queuert.notify.redis.connection import Refused, Wire, wait

DEAF = (
    "a message published as a test did not arrive: connections to this address seem to lead to several servers, or"
    " through a proxy that does not pass messages on. Give the address of one server. Until then everybody polls"
)

REFUSED = (
    "the server refuses notifications ({error}): give this user the commands of @pubsub and the channels &{channels}*."
    " Until then everybody polls"
)


class RedisSession(ListenSession):
    """Two connections: one sends, and one listens as soon as anybody wants to."""

    def __init__(
        self, connect: Callable[[], Wire], listener: Listener, times: ListenerTimeouts, *, prefix: str
    ) -> None:
        """Connect.

        Raises:
            Lost: that did not work.
        """
        self._sender = connect()
        self._subscriber: Wire | None = None
        self._connect = connect
        self._prefix = prefix
        self._refusal: str | None = None
        super().__init__(listener, times, prefix, on_deaf=DEAF)

    def close(self) -> None:
        """Disconnect."""
        for wire in self._wires():
            wire.close()

    def _wires(self) -> list[Wire]:
        return [self._sender] if self._subscriber is None else [self._sender, self._subscriber]

    def _may_send(self) -> bool:
        return True

    def _send(self, texts: Sequence[tuple[str, str]], limit: float) -> None:
        answers = self._sender.ask(*(["PUBLISH", channel, text] for channel, text in texts), limit=limit)
        refusals = [str(answer) for answer in answers if isinstance(answer, Refused)]
        refusal = refusals[0] if refusals else None
        # Once for each kind: whoever may not publish is refused every time.
        if refusal is not None and refusal != self._refusal:
            self._listener.dropped(REFUSED.format(error=refusal, channels=self._prefix))
        self._refusal = refusal

    def _wait(self) -> None:
        silent_since = time.monotonic() - self._times.probe
        if self._sender.last_received <= silent_since:
            self._sender.ask(["PING"], limit=self._times.answer)
        if self._subscriber is not None and self._subscriber.last_received <= silent_since:
            self._subscriber.ping(self._times.answer)
        wires = self._wires()
        # What the driver or TLS holds already makes no socket readable. The sender expects nothing but a farewell.
        if not any(wire.collect() for wire in wires):
            deadline = self._next_deadline(*(wire.last_received + self._times.probe for wire in wires))
            wait([self._listener.waker.fileno(), *(wire.fileno() for wire in wires)], deadline - time.monotonic())
        self._listener.waker.clear()

    def _received(self) -> list[tuple[str, str]]:
        for wire in self._wires():
            wire.collect()
        return [] if self._subscriber is None else self._subscriber.take_messages()

    def _join(self, channels: Sequence[str]) -> None:
        if self._subscriber is None:
            self._subscriber = self._connect()
        self._subscriber.join(*channels, limit=self._times.answer)

    def _leave(self, channels: Sequence[str]) -> None:
        if self._subscriber is not None:
            self._subscriber.leave(*channels, limit=self._times.answer)

    def _listen(self, topics: frozenset[Topic]) -> None:
        try:
            super()._listen(topics)
        except Refused as refusal:
            self._fail(REFUSED.format(error=refusal, channels=self._prefix))

    def _advance_test(self) -> None:
        try:
            super()._advance_test()
        except Refused as refusal:
            self._fail(REFUSED.format(error=refusal, channels=self._prefix))

    def _begin_test(self) -> tuple[str, str]:
        channel, text = f"{self._prefix}test", secrets.token_hex(8)
        self._join([channel])
        [answer] = self._sender.ask(["PUBLISH", channel, text], limit=self._times.answer)
        if isinstance(answer, Refused):
            raise answer
        return channel, text
