"""Heartbeats of workers, and what they did, on Redis. ``sync_workers.py`` is generated from this module."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from queuert.activity import (
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
    summed,
)
from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase
from queuert.workers import WorkerHeartbeat, WorkerRecord

_PERIODS_AT_ONCE = 20
"""Minutes or hours that one script reads, so that it does not keep the server for long."""


class AsyncRedisWorkers(AsyncRedisBase):
    """``record_heartbeat``, ``remove_worker``, ``list_workers``, ``get_activity`` and ``maintain_activity``."""

    async def record_heartbeat(
        self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None = None
    ) -> datetime:
        """Record that a worker is alive, its state, and what it did; return the store's time."""
        record = asdict(beat)
        del record["limits"]
        uptime = encode.pause(record.pop("uptime"))
        params = {
            "ttl": encode.pause(ttl),
            "uptime": uptime,
            "record": record,
            "limits": {type: encode.limits_of_type(one) for type, one in beat.limits.items()},
            **encode.activity_report(activity),
        }
        return decode.moment(await self._run("record_heartbeat", encode.plain(params)))

    async def remove_worker(self, worker_id: str, activity: ActivityReport | None = None) -> None:
        """Delete a worker that has stopped, and record the last of what it did."""
        params = {"id": worker_id, **encode.activity_report(activity)}
        await self._run("remove_worker", encode.plain(params))

    async def list_workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive."""
        found = [decode.worker(one) for one in await self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))

    async def get_activity(self, filter: ActivityFilter) -> list[Activity]:
        """Return what workers did, by minute or hour."""
        found: list[Activity] = []
        # Hours first, so that a minute that is added up meanwhile is not read twice.
        for seconds in (HOUR, MINUTE):
            after: str | None = encode.unix_time(filter.since, -seconds)
            while after is not None:
                params = encode.activity_filter(filter, seconds, after, _PERIODS_AT_ONCE)
                last, rows = await self._run("get_activity", params)
                found += [decode.activity(row, seconds) for row in rows]
                after = decode.maybe_text(last)
        return summed(found, filter.place)

    async def maintain_activity(
        self, *, limit: int = 1_000, minutes_kept: float = MINUTES_KEPT, hours_kept: float = HOURS_KEPT
    ) -> ActivityMaintenance:
        """Add minutes up to hours, and drop hours that are too old, in one script."""
        params = {"limit": limit, "minutes_kept": minutes_kept, "hours_kept": hours_kept}
        folded, dropped, more = await self._run("maintain_activity", encode.plain(params))
        return ActivityMaintenance(folded, dropped, bool(more))
