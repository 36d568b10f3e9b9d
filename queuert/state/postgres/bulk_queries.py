"""Queries about bulk writes: the number and the ids of their chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from queuert.errors import UnsupportedConnectionError
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.sync_store import Store

_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class BulkCounts:
    """The number of chains of a bulk write by status."""

    total: int
    completed: int
    failed: int
    cancelled: int

    @property
    def open(self) -> int:
        """The number of chains that have not closed."""
        return self.total - self.completed - self.failed - self.cancelled


def count_write(store: Store, write_id: str) -> BulkCounts:
    """Count the existing chains that the write started, by status.

    Raises:
        UnsupportedConnectionError: the store is not on Postgres, so it has no bulk writes.
    """
    postgres = _postgres(store)
    ((total, completed, failed, cancelled),) = postgres._fetch(postgres._sql.bulk_count, {"write_id": write_id})
    return BulkCounts(total, completed, failed, cancelled)


def chain_ids_of_write(store: Store, write_id: str) -> Iterator[str]:
    """Yield the ids of the chains that the write started, in order, reading page by page.

    Raises:
        UnsupportedConnectionError: the store is not on Postgres.
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
