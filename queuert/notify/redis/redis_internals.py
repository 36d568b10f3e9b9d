"""The part of redis-py that has no public name: the socket of a connection, to wait for several of them at once."""

from __future__ import annotations

from typing import Any

from redis.connection import AbstractConnection

NO_SOCKET = -1
"""Stands for a descriptor that this version of redis-py does not show."""


def descriptor(connection: AbstractConnection) -> int | None:
    """The descriptor of a connection's socket; None if it is closed, ``NO_SOCKET`` if redis-py does not show it."""
    if not hasattr(connection, "_sock"):
        return NO_SOCKET
    sock: Any = connection._sock
    return None if sock is None else int(sock.fileno())
