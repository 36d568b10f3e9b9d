"""Heartbeats of workers on Redis. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict

from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class AsyncRedisWorkers(AsyncRedisBase):
    """``record_heartbeat``, ``remove_worker`` and ``list_workers``."""

    async def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Record that a worker is alive."""
        record = asdict(beat)
        del record["limits"]
        limits = {type: encode.limits_of_type(one) for type, one in beat.limits.items()}
        uptime = encode.pause(record.pop("uptime"))
        await self._run(
            "record_heartbeat",
            encode.plain({"ttl": encode.pause(ttl), "uptime": uptime, "record": record, "limits": limits}),
        )

    async def remove_worker(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        await self._run("remove_worker", encode.plain([worker_id]))

    async def list_workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive."""
        found = [decode.worker(one) for one in await self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))
