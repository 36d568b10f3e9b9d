"""Bulk writes, looked at afterwards: how many of their chains are open, and which they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from queuert.errors import UnsupportedConnectionError
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.sync_store import Store

_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class BulkCounts:
    """How the chains of a bulk write stand."""

    total: int
    completed: int
    failed: int
    cancelled: int

    @property
    def open(self) -> int:
        """Those that have not closed."""
        return self.total - self.completed - self.failed - self.cancelled


def count_write(store: Store, write_id: str) -> BulkCounts:
    """How many chains the write started that are still there, and how they ended.

    Raises:
        UnsupportedConnectionError: the store is no Postgres: there are no bulk writes.
    """
    postgres = _postgres(store)
    ((total, completed, failed, cancelled),) = postgres._fetch(postgres._sql.bulk_count, {"write_id": write_id})
    return BulkCounts(total, completed, failed, cancelled)


def chain_ids_of_write(store: Store, write_id: str) -> Iterator[str]:
    """The ids of the chains that the write started, in order, read as they are asked for.

    Raises:
        UnsupportedConnectionError: the store is no Postgres.
    """
    postgres, after = _postgres(store), ""
    while True:
        values = {"write_id": write_id, "after": after, "limit": _PAGE}
        page = [row[0] for row in postgres._fetch(postgres._sql.bulk_chain_ids, values)]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]


def _postgres(store: Store) -> PostgresStore:
    if not isinstance(store, PostgresStore):
        raise UnsupportedConnectionError(f"bulk writes need a Postgres store, got {type(store).__name__}")
    return store
