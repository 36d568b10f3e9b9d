"""Heartbeats of workers on Postgres. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres import workers
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class AsyncPostgresWorkers(AsyncPostgresBase):
    """``record_heartbeat``, ``remove_worker`` and ``list_workers``."""

    async def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Record that a worker is alive, and its state."""
        [(others_are_over,)] = await self._fetch(self._sql.record_heartbeat, workers.beat(beat, ttl))
        if others_are_over:
            await self._fetch(self._sql.delete_stale_workers)

    async def remove_worker(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        await self._fetch(self._sql.remove_worker, {"id": worker_id})

    async def list_workers(self) -> list[WorkerRecord]:
        """Return the workers whose last heartbeat is not older than its ttl, the longest running first."""
        return [workers.worker(row) for row in await self._fetch(self._sql.list_workers)]
