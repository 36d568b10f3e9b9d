"""Management calls from outside on Redis. ``sync_outside.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from random import randrange
from typing import Any

from queuert.jobs import JobError
from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase, refuse_connection
from queuert.state.types import (
    ChainUpdate,
    DeleteResult,
    SweepResult,
    TriggeredJob,
    WorkerlessCompletion,
    check_completions,
)


class AsyncRedisManagement(AsyncRedisBase):
    """Complete, cancel, retry, trigger, delete and sweep, each one script."""

    async def complete_chains(
        self, completions: Sequence[WorkerlessCompletion], *, connection: Any = None
    ) -> list[ChainUpdate]:
        """End the last job of each chain from a client."""
        refuse_connection(connection)
        check_completions(completions)
        if not completions:
            return []
        answer = await self._commit("complete_chains", encode.completions(completions))
        return [decode.update(one) for one in answer]

    async def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled."""
        refuse_connection(connection)
        if not ids:
            return []
        error = encode.error_text(JobError("cancel", reason)) or ""
        return [decode.update(one) for one in await self._commit("cancel_chains", [*encode.plain(list(ids)), error])]

    async def retry_chains(self, ids: Sequence[str], *, connection: Any = None) -> list[ChainUpdate]:
        """Open failed and cancelled chains again."""
        refuse_connection(connection)
        if not ids:
            return []
        return [decode.update(one) for one in await self._commit("retry_chains", encode.plain(list(ids)))]

    async def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now."""
        refuse_connection(connection)
        if not ids:
            return []
        return [decode.triggered(one) for one in await self._commit("trigger_jobs", encode.plain(list(ids)))]

    async def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs."""
        refuse_connection(connection)
        deleted, running = await self._commit("delete_chains", encode.plain({"ids": list(ids), "cascade": cascade}))
        return DeleteResult(decode.texts(deleted), decode.texts(running))

    async def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs that wait for nothing any more."""
        params: dict[str, Any] = {"limit": limit, "seed": randrange(1 << 31)}
        params.update({} if cursor is None else {"cursor": cursor})
        following, released = await self._run("release_stranded", encode.plain(params))
        return SweepResult(tuple(map(decode.triggered, released)), decode.text(following) or None)
