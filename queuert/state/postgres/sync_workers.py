# Generated from queuert/state/postgres/async_workers.py, do not edit: see scripts/unasync.py
"""Who is at work, on Postgres. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres import workers
from queuert.state.postgres.sync_base import PostgresBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class PostgresWorkers(PostgresBase):
    """The worker registry."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Note that a worker is alive, and what it is at."""
        [(others_are_over,)] = self._fetch(self._sql.record_heartbeat, workers.beat(beat, ttl))
        if others_are_over:
            self._fetch(self._sql.delete_stale_workers)

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        self._fetch(self._sql.remove_worker, {"id": worker_id})

    def list_workers(self) -> list[WorkerRecord]:
        """The workers whose last beat is not older than its ttl, the longest running first."""
        return [workers.worker(row) for row in self._fetch(self._sql.list_workers)]
