# Generated from queuert/state/postgres/async_workers.py, do not edit: see scripts/unasync.py
"""Heartbeats of workers on Postgres. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres import workers
from queuert.state.postgres.sync_base import PostgresBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class PostgresWorkers(PostgresBase):
    """``record_heartbeat``, ``remove_worker`` and ``list_workers``."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Record that a worker is alive, and its state."""
        [(others_are_over,)] = self._fetch(self._sql.record_heartbeat, workers.beat(beat, ttl))
        if others_are_over:
            self._fetch(self._sql.delete_stale_workers)

    def remove_worker(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        self._fetch(self._sql.remove_worker, {"id": worker_id})

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers whose last heartbeat is not older than its ttl, the longest running first."""
        return [workers.worker(row) for row in self._fetch(self._sql.list_workers)]
