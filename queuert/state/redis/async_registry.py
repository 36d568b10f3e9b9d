"""The worker registry on Redis. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict

from queuert.registry import WorkerBeat, WorkerRecord
from queuert.state.redis import requests, rows
from queuert.state.redis.async_base import AsyncRedisBase


class AsyncRedisRegistry(AsyncRedisBase):
    """Who is at work."""

    async def beat_worker(self, beat: WorkerBeat, ttl: float) -> None:
        """Note that a worker is alive."""
        record = asdict(beat)
        uptime = requests.pause(record.pop("uptime"))
        await self._run("beat_worker", requests.plain({"ttl": requests.pause(ttl), "uptime": uptime, "record": record}))

    async def forget_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        await self._run("forget_worker", requests.plain([worker_id]))

    async def list_workers(self) -> list[WorkerRecord]:
        """The live workers."""
        found = [rows.worker(one) for one in await self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))
