"""The stores of runs: a server or a file, how it records the history, and how the run reads it at the end."""

from __future__ import annotations

from pathlib import Path

from queuert.testing.chaos.stores.base import OwnedStore


def owned_store(name: str, directory: Path, *, durable: bool) -> OwnedStore:
    """Return the store with this name, not started."""
    if name == "postgres":
        from queuert.testing.chaos.stores.postgres import OwnedPostgres

        return OwnedPostgres(directory, durable=durable)
    if name == "redis":
        from queuert.testing.chaos.stores.redis import OwnedRedis

        return OwnedRedis(directory, durable=durable)
    from queuert.testing.chaos.stores.sqlite import OwnedSQLite

    return OwnedSQLite(directory)


__all__ = ["OwnedStore", "owned_store"]
