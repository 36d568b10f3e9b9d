"""A connection to Redis whose calls all have a timeout."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import redis
from redis.connection import AbstractConnection
from redis.exceptions import ResponseError

from queuert.notify.redis.settings import NewConnection

Command: TypeAlias = Sequence[str]

CLIENT_NAME = "queuert-notify"

_POLL_INTERVAL = 0.1
"""Seconds between two reads of connections whose sockets redis-py does not show."""

_REPLICAS = ("slave", "replica")

REPLICA = (
    "this server is a replica, and what is published on one does not reach those who listen elsewhere: give the"
    " address of the primary"
)


NO_SOCKET = -1
"""Returned instead of a descriptor that this version of redis-py does not show."""


def descriptor(connection: AbstractConnection) -> int | None:
    """Return the descriptor of a connection's socket; None if it is closed, ``NO_SOCKET`` if redis-py hides it.

    The socket has no public name in redis-py. It is needed to wait for several connections at once.
    """
    if not hasattr(connection, "_sock"):
        return NO_SOCKET
    sock: Any = connection._sock
    return None if sock is None else int(sock.fileno())


class ConnectionLost(Exception):
    """The connection is lost, or the server is a replica. Connect again."""


class CommandRejected(Exception):
    """The server answered with an error, and the connection is still open."""


class ListenConnection:
    """A connection of a session, used by one thread: to send commands, or, once subscribed, to receive messages."""

    def __init__(self, connection: AbstractConnection) -> None:
        # The driver's classes do not declare the types of most of what they return.
        self._connection: Any = connection
        self._messages: list[tuple[str, str]] = []
        self.last_received = time.monotonic()
        """When the server last answered, on the monotonic clock."""

    @classmethod
    def connect(cls, new_connection: NewConnection, timeout: float) -> ListenConnection:
        """Connect to a primary.

        Raises:
            ConnectionLost: no primary could be reached within about ``timeout`` seconds.
        """
        connection = cls(new_connection())
        try:
            connection._identify(timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _identify(self, timeout: float) -> None:
        try:
            self._connection.connect()
        except (redis.RedisError, OSError) as error:
            raise _connection_lost(error) from error
        # Neither is necessary, and the server may reject both from a user with few rights.
        _, role = self.execute(["CLIENT", "SETNAME", CLIENT_NAME], ["ROLE"], timeout=timeout)
        if isinstance(role, list) and role and _text(role[0]) in _REPLICAS:
            raise ConnectionLost(REPLICA)

    def fileno(self) -> int:
        """Return the descriptor of its socket, or ``NO_SOCKET``.

        Raises:
            ConnectionLost: the connection is closed.
        """
        number = descriptor(self._connection)
        if number is None:
            raise ConnectionLost("the connection is closed")
        return number

    def close(self) -> None:
        """Disconnect. Safe to repeat."""
        self._connection.disconnect()

    def execute(self, *commands: Command, timeout: float) -> list[Any]:
        """Send commands together and return their answers; an error is returned as a :class:`CommandRejected`.

        Raises:
            ConnectionLost: the connection is lost, or the answers did not arrive within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        self._send(commands)
        return [self._read_answer(deadline, timeout) for _ in commands]

    # --- messages -----------------------------------------------------------------------------------------------------

    def subscribe(self, *channels: str, timeout: float) -> None:
        """Receive what is published on these channels.

        Raises:
            CommandRejected: the user has no right to subscribe.
            ConnectionLost: the connection is lost.
        """
        self._change_subscriptions("subscribe", channels, timeout)

    def unsubscribe(self, *channels: str, timeout: float) -> None:
        """Stop receiving what is published on these channels.

        Raises:
            CommandRejected: the user has no right to unsubscribe.
            ConnectionLost: the connection is lost.
        """
        self._change_subscriptions("unsubscribe", channels, timeout)

    def ping(self, timeout: float) -> None:
        """Check that the server answers, on a connection that has subscribed.

        Raises:
            ConnectionLost: the server did not answer within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        self._send([["PING"]])
        # The server may reject PING from a user with few rights: that is an answer, too.
        with suppress(CommandRejected):
            while self._receive(deadline, timeout) != "pong":
                pass

    def collect(self) -> bool:
        """Read what has arrived, without waiting, and return whether there are messages. Call it before :func:`wait`.

        Raises:
            ConnectionLost: the connection is lost.
        """
        while self._is_readable(0.0):
            self._receive(time.monotonic(), 0.0)
        return bool(self._messages)

    def take_messages(self) -> list[tuple[str, str]]:
        """Remove and return the channels and texts of the messages that were collected, the oldest first."""
        messages, self._messages = self._messages, []
        return messages

    def _change_subscriptions(self, verb: str, channels: Sequence[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._send([[verb.upper(), *channels]])
        confirmed = 0
        while confirmed < len(channels):
            confirmed += self._receive(deadline, timeout) == verb

    def _receive(self, deadline: float, timeout: float) -> str:
        """Read one answer, keep it if it is a message, and return its kind."""
        answer = self._read_answer(deadline, timeout)
        if isinstance(answer, CommandRejected):
            raise answer
        kind, *rest = answer if isinstance(answer, list) and answer else [answer]
        if _text(kind) == "message" and len(rest) == 2:
            channel, message = map(_text, rest)
            self._messages.append((channel, message))
        return _text(kind).lower()

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _send(self, commands: Sequence[Command]) -> None:
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except (redis.RedisError, OSError) as error:
            raise _connection_lost(error) from error

    def _read_answer(self, deadline: float, timeout: float) -> Any:
        if not self._is_readable(max(0.0, deadline - time.monotonic())):
            raise ConnectionLost(f"the server did not answer within {timeout:g} seconds")
        try:
            answer = self._connection.read_response()
        except ResponseError as error:
            answer = CommandRejected(str(error))
        except (redis.RedisError, OSError) as error:
            raise _connection_lost(error) from error
        self.last_received = time.monotonic()
        return answer

    def _is_readable(self, timeout: float) -> bool:
        try:
            return bool(self._connection.can_read(timeout))
        except (redis.RedisError, OSError) as error:
            raise _connection_lost(error) from error


def wait(descriptors: Sequence[int], timeout: float) -> None:
    """Wait until one of the descriptors can be read, at most ``timeout`` seconds.

    If one is ``NO_SOCKET`` the wait is short, and the caller has to read from that connection.
    """
    if NO_SOCKET in descriptors:
        timeout = min(timeout, _POLL_INTERVAL)
        descriptors = [number for number in descriptors if number != NO_SOCKET]
    poll = select.poll()
    for number in descriptors:
        poll.register(number, select.POLLIN)
    poll.poll(max(0.0, timeout) * 1000)


def _connection_lost(error: BaseException) -> ConnectionLost:
    return ConnectionLost(str(error).strip() or repr(error))


def _text(part: object) -> str:
    # Anybody may publish, any bytes.
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)
