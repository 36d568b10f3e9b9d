"""The harness of tests below the client: a Postgres store, and a connection that reads and changes its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from queuert.ids import new_token
from queuert.state import Store
from queuert.state.postgres import PostgresState
from queuert.state.types import ClaimedJob, ClaimRequest, NewJob

_EVENTS = """
SELECT job_id, kind, status, attempt, worker FROM queuert.event WHERE seq > %s ORDER BY seq
"""


@dataclass
class StoreHarness:
    """An open store, and a connection to its database."""

    dsn: str
    store: Store
    sql: psycopg.Connection[Any]
    seen: int = 0

    def start(self, *ids: str, type: str = "work", **more: Any) -> None:
        """Start chains of one job, and skip their events."""
        self.store.start_jobs([NewJob(id, type, "1", id_chosen=True, **more) for id in ids])

    def claim(self, count: int = 1, type: str = "work", holder: str = "me") -> list[ClaimedJob]:
        """Claim jobs that must be due."""
        claimed = self.store.claim(ClaimRequest({type: 60.0}, count, holder, new_token()))
        assert len(claimed) == count
        return claimed

    def new(self) -> list[tuple[Any, ...]]:
        """Return the events since the last call: job, kind, status, attempt, worker."""
        found = self.sql.execute(_EVENTS, [self.seen]).fetchall()
        row = self.sql.execute("SELECT coalesce(max(seq), 0) FROM queuert.event").fetchone()
        assert row is not None
        self.seen = row[0]
        return found

    def expire(self, *ids: str) -> None:
        """Let leases expire."""
        self.sql.execute(
            "UPDATE queuert.job SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE id = ANY (%s)",
            [list(ids)],
        )

    def value(self, query: str, *values: Any) -> Any:
        """Return the only column of the only row."""
        row = self.sql.execute(query.encode(), values).fetchone()
        assert row is not None
        return row[0]

    def write_event(self, happened_at: str, *, job_id: str = "by hand", error: Any = None) -> None:
        """An event at a given time."""
        self.sql.execute(
            """
            INSERT INTO queuert.job_event
                (happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, error)
            VALUES (%s, 'created', 'ready', %s, %s, 0, 'work', 'work', 0, %s)
            """,
            [happened_at, job_id, job_id, Jsonb(error) if error else None],
        )


def opened(dsn: str) -> Store:
    """Yield a store, and close it."""
    store = PostgresState(dsn).sync_store()
    store.open()
    return store
