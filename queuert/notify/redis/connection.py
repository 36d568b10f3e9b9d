"""A connection to Redis that never makes its thread wait longer than it wants to."""

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

_LOOK_EVERY = 0.1
"""Seconds between two looks at connections whose sockets redis-py does not show."""

_REPLICAS = ("slave", "replica")

REPLICA = (
    "this server is a replica, and what is published on one does not reach those who listen elsewhere: give the"
    " address of the primary"
)


NO_SOCKET = -1
"""Stands for a descriptor that this version of redis-py does not show."""


def descriptor(connection: AbstractConnection) -> int | None:
    """The descriptor of a connection's socket; None if it is closed, ``NO_SOCKET`` if redis-py does not show it.

    The socket has no public name in redis-py. It is needed to wait for several connections at once.
    """
    if not hasattr(connection, "_sock"):
        return NO_SOCKET
    sock: Any = connection._sock
    return None if sock is None else int(sock.fileno())


class Lost(Exception):
    """The connection is lost, or does not serve; another one may."""


class Refused(Exception):
    """The server answered with an error, and the connection stands."""


class Wire:
    """One connection, used by one thread: to send commands, or, once it has subscribed, to hear."""

    def __init__(self, connection: AbstractConnection) -> None:
        # The driver's classes do not tell the types of most of what they return.
        self._connection: Any = connection
        self._messages: list[tuple[str, str]] = []
        self.last_received = time.monotonic()
        """When the server was last heard of."""

    @classmethod
    def connect(cls, new_connection: NewConnection, limit: float) -> Wire:
        """Connect to a primary.

        Raises:
            Lost: that did not work within about ``limit`` seconds.
        """
        wire = cls(new_connection())
        try:
            wire._introduce(limit)
        except BaseException:
            wire.close()
            raise
        return wire

    def _introduce(self, limit: float) -> None:
        try:
            self._connection.connect()
        except (redis.RedisError, OSError) as error:
            raise _lost(error) from error
        # Both are for comfort alone, and a user with few rights may be refused them.
        _, role = self.ask(["CLIENT", "SETNAME", CLIENT_NAME], ["ROLE"], limit=limit)
        if isinstance(role, list) and role and _text(role[0]) in _REPLICAS:
            raise Lost(REPLICA)

    def fileno(self) -> int:
        """The descriptor of its socket, to wait for, or ``NO_SOCKET``.

        Raises:
            Lost: it has none any more.
        """
        found = descriptor(self._connection)
        if found is None:
            raise Lost("the connection is closed")
        return found

    def close(self) -> None:
        """Disconnect. Safe to repeat."""
        self._connection.disconnect()

    def ask(self, *commands: Command, limit: float) -> list[Any]:
        """Send commands together and return their answers, an error as a :class:`Refused` that is not raised.

        Raises:
            Lost: the connection is lost, or the answers did not come within ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        self._send(commands)
        return [self._answer(deadline, limit) for _ in commands]

    # --- for hearing --------------------------------------------------------------------------------------------------

    def join(self, *channels: str, limit: float) -> None:
        """Hear what is published on these channels.

        Raises:
            Refused: the user has no right to.
            Lost: the connection is lost.
        """
        self._change("subscribe", channels, limit)

    def leave(self, *channels: str, limit: float) -> None:
        """Hear these channels no more.

        Raises:
            Refused: the user has no right to.
            Lost: the connection is lost.
        """
        self._change("unsubscribe", channels, limit)

    def ping(self, limit: float) -> None:
        """Wait for a sign of the server's on a connection that has subscribed.

        Raises:
            Lost: it gives none within ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        self._send([["PING"]])
        # A user who may not even ask is refused, and that is a sign too.
        with suppress(Refused):
            while self._hear(deadline, limit) != "pong":
                pass

    def collect(self) -> bool:
        """Take what has arrived, without waiting for more; whether there are messages. Waiting is safe after this.

        Raises:
            Lost: the connection is lost.
        """
        while self._is_readable(0.0):
            self._hear(time.monotonic(), 0.0)
        return bool(self._messages)

    def take_messages(self) -> list[tuple[str, str]]:
        """The channels and texts of the messages that were collected, oldest first."""
        messages, self._messages = self._messages, []
        return messages

    def _change(self, verb: str, channels: Sequence[str], limit: float) -> None:
        deadline = time.monotonic() + limit
        self._send([[verb.upper(), *channels]])
        confirmed = 0
        while confirmed < len(channels):
            confirmed += self._hear(deadline, limit) == verb

    def _hear(self, deadline: float, limit: float) -> str:
        """Take one thing that the server says, and keep it if it is a message; what kind of thing it is."""
        said = self._answer(deadline, limit)
        if isinstance(said, Refused):
            raise said
        kind, *rest = said if isinstance(said, list) and said else [said]
        if _text(kind) == "message" and len(rest) == 2:
            self._messages.append((_text(rest[0]), _text(rest[1])))
        return _text(kind).lower()

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _send(self, commands: Sequence[Command]) -> None:
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except (redis.RedisError, OSError) as error:
            raise _lost(error) from error

    def _answer(self, deadline: float, limit: float) -> Any:
        if not self._is_readable(max(0.0, deadline - time.monotonic())):
            raise Lost(f"the server did not answer within {limit:g} seconds")
        try:
            answer = self._connection.read_response()
        except ResponseError as error:
            answer = Refused(str(error))
        except (redis.RedisError, OSError) as error:
            raise _lost(error) from error
        self.last_received = time.monotonic()
        return answer

    def _is_readable(self, timeout: float) -> bool:
        try:
            return bool(self._connection.can_read(timeout))
        except (redis.RedisError, OSError) as error:
            raise _lost(error) from error


def wait(descriptors: Sequence[int], timeout: float) -> None:
    """Wait until one of the descriptors can be read, at most ``timeout`` seconds.

    Where one is ``NO_SOCKET`` the wait is short, for the caller to look at that connection by itself.
    """
    if NO_SOCKET in descriptors:
        timeout = min(timeout, _LOOK_EVERY)
        descriptors = [one for one in descriptors if one != NO_SOCKET]
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    poll.poll(max(0.0, timeout) * 1000)


def _lost(error: BaseException) -> Lost:
    return Lost(str(error).strip() or repr(error))


def _text(part: object) -> str:
    # Anybody may publish, and any bytes.
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)
