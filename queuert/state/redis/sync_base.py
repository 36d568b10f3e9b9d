# Generated from queuert/state/redis/async_base.py, do not edit: see scripts/unasync.py
"""Connections and scripts for all groups of operations. ``sync_base.py`` is generated from this module."""

from __future__ import annotations

from typing import Any

from queuert.errors import UnsupportedConnectionError
from queuert.state.redis.connections import Connections
from queuert.state.redis.encode import Arguments
from queuert.state.redis.errors import mapped_errors
from queuert.state.redis.server_check import sync_server_findings
from queuert.state.redis.settings import RedisSettings, address_warnings
from queuert.state.types import PoolUse, StoreWarning

NO_TRANSACTIONS = (
    "connection= was given, but jobs are kept in Redis, which takes part in no transaction of a caller's: "
    "keep them in Postgres or SQLite where they must commit with other writes"
)


def refuse_connection(connection: Any) -> None:
    """Raise if the caller passed a connection: Redis cannot join the caller's transaction.

    Raises:
        UnsupportedConnectionError: a connection was passed.
    """
    if connection is not None:
        raise UnsupportedConnectionError(NO_TRANSACTIONS)


class RedisBase:
    """The connections of a store, and the way to run scripts on them."""

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = Connections(settings, connections)
        self.risks: tuple[StoreWarning, ...] = ()
        """Of the server's configuration and of TLS; known once the store is open."""

    @property
    def pool_use(self) -> PoolUse | None:
        """None: the driver does not say what its pool is doing."""
        return None

    def open(self) -> None:
        """Connect, and check the server."""
        client = self._connections.open()
        try:
            waits = self._settings.wait_for_flush
            with mapped_errors():
                findings = sync_server_findings(client, wait_for_flush=waits)
            findings.check(allow_eviction=self._settings.allow_eviction, wait_for_flush=waits)
            reported = (StoreWarning(str(risk), risk.advice) for risk in findings.risks)
            self.risks = (*reported, *address_warnings(self._settings))
        except BaseException:
            self._connections.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _run(self, name: str, arguments: Arguments) -> Any:
        return self._connections.run(name, arguments)

    def _commit(self, name: str, arguments: Arguments) -> Any:
        """Run a script whose caller relies on the write; with ``wait_for_flush`` this waits until the write is
        flushed."""
        return self._connections.run(name, arguments, flushed=True)
