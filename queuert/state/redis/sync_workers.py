# Generated from queuert/state/redis/async_workers.py, do not edit: see scripts/unasync.py
"""Heartbeats of workers on Redis. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict

from queuert.state.redis import decode, encode
from queuert.state.redis.sync_base import RedisBase
from queuert.workers import WorkerHeartbeat, WorkerRecord


class RedisWorkers(RedisBase):
    """``record_heartbeat``, ``remove_worker`` and ``list_workers``."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Record that a worker is alive."""
        record = asdict(beat)
        del record["limits"]
        limits = {type: encode.limits_of_type(one) for type, one in beat.limits.items()}
        uptime = encode.pause(record.pop("uptime"))
        self._run(
            "record_heartbeat",
            encode.plain({"ttl": encode.pause(ttl), "uptime": uptime, "record": record, "limits": limits}),
        )

    def remove_worker(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        self._run("remove_worker", encode.plain([worker_id]))

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive."""
        found = [decode.worker(one) for one in self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))
