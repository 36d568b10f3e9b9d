"""What type checkers accept as ``connection=``: an async client takes async connections, a sync client sync ones.

Drivers are not imported for it. A connection is told by its ``close``, which is a coroutine in async libraries only.
Whether the store can write on it is checked when it is used, see ``UnsupportedConnectionError``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import sqlite3


class AsyncCloses(Protocol):
    """An async connection, cursor, session or pool."""

    def close(self) -> Awaitable[None]:
        """Close it."""
        ...


class Closes(Protocol):
    """A sync connection, cursor, session or pool."""

    def close(self) -> None:
        """Close it."""
        ...


class LendsConnections(Protocol):
    """A pool of psycopg2."""

    def getconn(self) -> Any:
        """Lend a connection."""
        ...

    def putconn(self, conn: Any) -> Any:
        """Take a connection back."""
        ...


class Proxy(Protocol):
    """An object whose attributes are a connection's, such as Django's ``connection`` or one of asyncpg's pool."""

    def __getattr__(self, name: str, /) -> Any: ...


if TYPE_CHECKING:
    AsyncConnectionLike: TypeAlias = AsyncCloses | Proxy | sqlite3.Connection
    """``connection=`` of an ``AsyncClient``; SQLite has only a sync driver."""
else:
    # Some builds of Python have no sqlite3. It is no text, since annotations of the methods are evaluated by others.
    AsyncConnectionLike = AsyncCloses | Proxy

ConnectionLike: TypeAlias = Closes | LendsConnections | Proxy
"""``connection=`` of a ``Client``."""
