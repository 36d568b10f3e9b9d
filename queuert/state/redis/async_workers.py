"""The worker registry on Redis. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict

from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class AsyncRedisWorkers(AsyncRedisBase):
    """Who is at work."""

    async def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Note that a worker is alive."""
        record = asdict(beat)
        del record["limits"]
        limits = {type: encode.limits_of_type(one) for type, one in beat.limits.items()}
        uptime = encode.pause(record.pop("uptime"))
        await self._run(
            "record_heartbeat",
            encode.plain({"ttl": encode.pause(ttl), "uptime": uptime, "record": record, "limits": limits}),
        )

    async def remove_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        await self._run("remove_worker", encode.plain([worker_id]))

    async def list_workers(self) -> list[WorkerRecord]:
        """The live workers."""
        found = [decode.worker(one) for one in await self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))
