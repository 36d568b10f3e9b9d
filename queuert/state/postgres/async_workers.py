"""Who is at work, on Postgres. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres import workers
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.workers import WorkerBeat, WorkerRecord


class AsyncPostgresRegistry(AsyncPostgresBase):
    """The worker registry."""

    async def beat_worker(self, beat: WorkerBeat, ttl: float) -> None:
        """Note that a worker is alive, and what it is at."""
        [(others_are_over,)] = await self._fetch(self._sql.beat_worker, workers.beat(beat, ttl))
        if others_are_over:
            await self._fetch(self._sql.sweep_workers)

    async def forget_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        await self._fetch(self._sql.forget_worker, {"id": worker_id})

    async def list_workers(self) -> list[WorkerRecord]:
        """The workers whose last beat is not older than its ttl, the longest running first."""
        return [workers.worker(row) for row in await self._fetch(self._sql.list_workers)]
