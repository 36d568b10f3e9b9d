# Generated from queuert/state/redis/async_registry.py, do not edit: see scripts/unasync.py
"""The worker registry on Redis. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict

from queuert.registry import WorkerBeat, WorkerRecord
from queuert.state.redis import requests, rows
from queuert.state.redis.sync_base import RedisBase


class RedisRegistry(RedisBase):
    """Who is at work."""

    def beat_worker(self, beat: WorkerBeat, ttl: float) -> None:
        """Note that a worker is alive."""
        record = asdict(beat)
        uptime = requests.pause(record.pop("uptime"))
        self._run("beat_worker", requests.plain({"ttl": requests.pause(ttl), "uptime": uptime, "record": record}))

    def forget_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        self._run("forget_worker", requests.plain([worker_id]))

    def list_workers(self) -> list[WorkerRecord]:
        """The live workers."""
        found = [rows.worker(one) for one in self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))
