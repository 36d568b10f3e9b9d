# Generated from queuert/state/postgres/async_workers.py, do not edit: see scripts/unasync.py
"""Who is at work, on Postgres. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres import workers
from queuert.state.postgres.sync_base import PostgresBase
from queuert.workers import WorkerBeat, WorkerRecord


class PostgresRegistry(PostgresBase):
    """The worker registry."""

    def beat_worker(self, beat: WorkerBeat, ttl: float) -> None:
        """Note that a worker is alive, and what it is at."""
        [(others_are_over,)] = self._fetch(self._sql.beat_worker, workers.beat(beat, ttl))
        if others_are_over:
            self._fetch(self._sql.sweep_workers)

    def forget_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        self._fetch(self._sql.forget_worker, {"id": worker_id})

    def list_workers(self) -> list[WorkerRecord]:
        """The workers whose last beat is not older than its ttl, the longest running first."""
        return [workers.worker(row) for row in self._fetch(self._sql.list_workers)]
