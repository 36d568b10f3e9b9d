"""The session of the listener on Redis.

In the protocol that all servers have, a connection that has subscribed can send no other commands. So there are two
connections: one sends, from the start; one receives, from the first subscription on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from queuert.notify.adapter import Topic
from queuert.notify.listener import Listener, ListenerTimeouts, ListenSession
from queuert.notify.redis.connection import CommandRejected, ListenConnection, wait

TEST_FAILED = (
    "a message published as a test did not arrive: connections to this address seem to lead to several servers, or"
    " through a proxy that does not pass messages on. Give the address of one server. Until then everybody polls"
)

REJECTED = (
    "the server refuses notifications ({error}): give this user the commands of @pubsub and the channels &{channels}*."
    " Until then everybody polls"
)


class RedisSession(ListenSession):
    """Two connections: one sends, and one receives, from the first subscription on."""

    def __init__(
        self, connect: Callable[[], ListenConnection], listener: Listener, timeouts: ListenerTimeouts, *, prefix: str
    ) -> None:
        """Connect.

        Raises:
            ConnectionLost: no primary could be reached.
        """
        self._sender = connect()
        self._subscriber: ListenConnection | None = None
        self._connect = connect
        self._prefix = prefix
        self._last_rejection: str | None = None
        super().__init__(listener, timeouts, prefix, silent_error=TEST_FAILED)

    def close(self) -> None:
        """Disconnect."""
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[ListenConnection]:
        return [self._sender] if self._subscriber is None else [self._sender, self._subscriber]

    def _may_send(self) -> bool:
        return True

    def _send(self, texts: Sequence[tuple[str, str]], timeout: float) -> None:
        answers = self._sender.execute(*(["PUBLISH", channel, text] for channel, text in texts), timeout=timeout)
        rejections = [str(answer) for answer in answers if isinstance(answer, CommandRejected)]
        rejection = rejections[0] if rejections else None
        # Once for each error: from a user who may not publish, each command is rejected.
        if rejection is not None and rejection != self._last_rejection:
            self._listener.on_dropped(REJECTED.format(error=rejection, channels=self._prefix))
        self._last_rejection = rejection

    def _wait(self) -> None:
        silent_since = time.monotonic() - self._timeouts.probe
        if self._sender.last_received <= silent_since:
            self._sender.execute(["PING"], timeout=self._timeouts.answer)
        if self._subscriber is not None and self._subscriber.last_received <= silent_since:
            self._subscriber.ping(self._timeouts.answer)
        connections = self._connections()
        # Collect first: what the driver or TLS has read already makes no socket readable. To the sender the server
        # sends nothing but the end of the connection.
        if not any(connection.collect() for connection in connections):
            probe = self._timeouts.probe
            deadline = self._next_deadline(*(connection.last_received + probe for connection in connections))
            descriptors = [self._listener.waker.fileno(), *(connection.fileno() for connection in connections)]
            wait(descriptors, deadline - time.monotonic())
        self._listener.waker.clear()

    def _take_received(self) -> list[tuple[str, str]]:
        for connection in self._connections():
            connection.collect()
        return [] if self._subscriber is None else self._subscriber.take_messages()

    def _subscribe(self, channels: Sequence[str]) -> None:
        if self._subscriber is None:
            self._subscriber = self._connect()
        self._subscriber.subscribe(*channels, timeout=self._timeouts.answer)

    def _unsubscribe(self, channels: Sequence[str]) -> None:
        if self._subscriber is not None:
            self._subscriber.unsubscribe(*channels, timeout=self._timeouts.answer)

    def _listen(self, topics: frozenset[Topic]) -> None:
        try:
            super()._listen(topics)
        except CommandRejected as error:
            self._fail(REJECTED.format(error=error, channels=self._prefix))

    def _advance_self_test(self) -> None:
        try:
            super()._advance_self_test()
        except CommandRejected as error:
            self._fail(REJECTED.format(error=error, channels=self._prefix))

    def _begin_test(self) -> tuple[str, str]:
        channel, text = f"{self._prefix}test", secrets.token_hex(8)
        self._subscribe([channel])
        [answer] = self._sender.execute(["PUBLISH", channel, text], timeout=self._timeouts.answer)
        if isinstance(answer, CommandRejected):
            raise answer
        return channel, text
