"""Expiry and pruning of closed chains on Redis. ``sync_retention.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.jobs import TtlUpdate
from queuert.policies import checked_ttl
from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase
from queuert.state.types import PruneRequest, PruneResult, StagingCleanup


class AsyncRedisRetention(AsyncRedisBase):
    """``update_result_ttl``, ``prune`` and ``clean_staging``."""

    async def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now."""
        params = {"ids": list(ids), "ttl": encode.pause(checked_ttl("seconds", seconds))}
        return [TtlUpdate(decode.text(one)) for one in await self._commit("update_result_ttl", encode.plain(params))]

    async def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep."""
        following, pruned = await self._run("prune", encode.prune(request))
        return PruneResult(decode.texts(pruned), f"{following[0]}:{following[1]}" if following else None)

    async def clean_staging(self) -> StagingCleanup:
        """Do nothing: only Postgres has bulk writes."""
        return StagingCleanup()
