# Generated from queuert/state/postgres/async_workers.py, do not edit: see scripts/unasync.py
"""Heartbeats of workers, and what they did, on Postgres. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from queuert.activity import (
    HOURS_KEPT,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
)
from queuert.limits import TypeTraits
from queuert.state import records
from queuert.state.postgres import workers
from queuert.state.postgres.sync_base import PostgresBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class PostgresWorkers(PostgresBase):
    """``record_heartbeat``, ``remove_worker``, ``list_workers``, ``get_activity`` and ``maintain_activity``."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None = None) -> datetime:
        """Record that a worker is alive, its state, and what it did; return the store's time."""
        rows = self._fetch(self._sql.record_heartbeat, workers.beat(beat, ttl, activity))
        others_are_over, now = workers.answer(rows[0])
        if others_are_over:
            self._fetch(self._sql.delete_stale_workers)
        return now

    def remove_worker(self, worker_id: str, activity: ActivityReport | None = None) -> None:
        """Delete a worker that has stopped, and record the last of what it did."""
        self._fetch(self._sql.remove_worker, workers.removed(worker_id, activity))

    def list_type_traits(self, *, connection: Any = None) -> list[TypeTraits]:
        """Return what is particular to job types, by name, as workers have recorded it."""
        return [TypeTraits(*row) for row in self._read(connection, self._sql.list_type_traits, {})]

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers whose last heartbeat is not older than its ttl, the longest running first."""
        return [records.worker(row) for row in self._fetch(self._sql.list_workers)]

    def count_held(self, holders: Sequence[str]) -> dict[str, int]:
        """Return how many jobs each of these workers has leased now."""
        return dict(self._fetch(self._sql.count_held, {"holders": list(holders)}))

    def get_activity(self, filter: ActivityFilter) -> list[Activity]:
        """Return what workers did, by minute or hour."""
        rows = self._fetch(self._sql.get_activity, workers.activity_filter(filter))
        return [workers.activity(row) for row in rows]

    def maintain_activity(
        self, *, limit: int = 1_000, minutes_kept: float = MINUTES_KEPT, hours_kept: float = HOURS_KEPT
    ) -> ActivityMaintenance:
        """Add minutes up to hours, and drop hours that are too old, in a statement each."""
        [(folded,)] = self._fetch(self._sql.fold_activity, {"kept": minutes_kept, "limit": limit})
        dropped = len(self._fetch(self._sql.drop_activity, {"kept": hours_kept, "limit": limit}))
        return ActivityMaintenance(folded, dropped, max(folded, dropped) >= limit)
