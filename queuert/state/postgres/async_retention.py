"""Expiry and pruning of closed chains on Postgres. ``sync_retention.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import starmap
from typing import Any

from psycopg import AsyncConnection, Error

from queuert.jobs import TtlUpdate
from queuert.policies import checked_ttl
from queuert.state.postgres import retention
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch, forget_deleted
from queuert.state.postgres.bounds import async_bounded
from queuert.state.postgres.bulk import DROP_TIMEOUT, is_stage, staged
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.retention import PruneCandidate
from queuert.state.postgres.rows import DeletedJob
from queuert.state.postgres.statements import Statements
from queuert.state.types import WRITES_KEPT, PruneRequest, PruneResult, StagingCleanup


class AsyncPostgresRetention(AsyncPostgresBase):
    """``update_result_ttl``, ``prune`` and ``clean_staging``."""

    async def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now."""
        params = {"ids": list(ids), "seconds": checked_ttl("result_ttl", seconds)}
        rows = await self._fetch(self._sql.update_result_ttl, params) if ids else []
        return retention.ttl_updates(ids, rows)

    async def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep."""
        async with self._connections.connection() as connection:
            to_delete, to_mark, cursor = await self._select_prunable(connection, request)
            if request.preview:
                needed = await fetch(connection, self._sql.find_needed, retention.ids(to_delete)) if to_delete else []
                return PruneResult(retention.deletable(to_delete, needed), cursor, [one.id for one in to_mark])
            deleted: list[DeletedJob] = []
            if to_delete:
                async with async_bounded(connection):
                    deleted = await prune(connection, self._sql, to_delete, closed_before=request.closed_before)
            stale = await fetch(connection, self._sql.mark_stale, retention.marked(to_mark)) if to_mark else []
            return PruneResult(retention.gone(to_delete, deleted), cursor, [id for (id,) in stale])

    async def _select_prunable(
        self, connection: AsyncConnection[Any], request: PruneRequest
    ) -> tuple[list[PruneCandidate], list[PruneCandidate], str | None]:
        """Return the chains to delete and those to mark among those of one page, and the cursor of the next page."""
        cursor = retention.cursor_of(request)
        to_delete: list[PruneCandidate] = []
        limit = request.limit
        if request.expired and (cursor is None or cursor.type is None):
            params = retention.expired(cursor, request.limit, request.closed_before)
            expired = await fetch(connection, self._sql.find_expired, params)
            to_delete = retention.expired_chains(expired)
            limit -= len(expired)
            if limit <= 0:
                return to_delete, [], retention.cursor_after_expired(expired[-1]).encode()
            cursor = None
        ranges, params = retention.beyond_retention(request, cursor, limit)
        if not ranges:
            return to_delete, [], None
        rows = await fetch(connection, self._sql.find_beyond_retention, params)
        beyond, to_mark = retention.chains_beyond_retention(request, rows)
        following = retention.cursor_after_retention(ranges, rows[-1]).encode() if len(rows) >= limit else None
        return to_delete + beyond, to_mark, following

    async def clean_staging(self) -> StagingCleanup:
        """Drop what drivers that died have staged, and the records of old bulk writes, each step in a transaction of
        its own."""
        async with self._connections.connection() as connection:
            await connection.execute(self._sql.bulk_delete_invalid_records)
            idle = await fetch(connection, self._sql.bulk_idle_stages, {"seconds": None})
            dropped = tuple([name for (name,) in idle if await self._drop_stage(connection, name)])
            await connection.execute(self._sql.stream_delete_old, {"seconds": None})
            forgotten = await fetch(connection, self._sql.bulk_delete_old_writes, {"seconds": WRITES_KEPT})
        return StagingCleanup(dropped, len(forgotten))

    async def _drop_stage(self, connection: AsyncConnection[Any], name: str) -> bool:
        """Drop a staging table. Returns False if it is being loaded or was used meanwhile, belongs to another role, or
        cannot be dropped.

        A role that may create such tables can create one that nobody can drop. It must not keep the others from being
        dropped.
        """
        if not is_stage(name):
            return False
        try:
            async with async_bounded(connection):
                await connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{DROP_TIMEOUT}s",))
                if not await fetch(connection, self._sql.bulk_delete_idle_record, {"name": name, "seconds": None}):
                    return False
                await connection.execute(staged(self._sql.bulk_drop_stage, name))
        except Error:
            if connection.closed:
                raise
            return False
        return True


async def prune(
    connection: AsyncAnyConnection,
    sql: Statements,
    to_delete: Sequence[PruneCandidate],
    *,
    closed_before: datetime | None = None,
    wait: bool = False,
) -> list[DeletedJob]:
    """Delete chains inside the connection's transaction if they have not changed since; return their jobs.

    Chains that closed, or became stale, at ``closed_before`` or later are kept. Rows that other transactions have
    locked are skipped, unless the call waits for them.
    """
    lock = sql.lock_prunable_waiting if wait else sql.lock_prunable
    locked = await fetch(connection, lock, retention.ids(to_delete))
    rows = await fetch(connection, sql.prune, retention.pruned(to_delete, locked, closed_before))
    deleted = list(starmap(DeletedJob, rows))
    await forget_deleted(connection, sql, deleted)
    return deleted


async def delete_expired(connection: AsyncAnyConnection, sql: Statements, ids: Sequence[str]) -> bool:
    """Delete those of these chains that have expired, so that their ids can be used again. Returns whether there were
    any."""
    async with async_bounded(connection):
        found = await fetch(connection, sql.find_expired_ids, {"ids": list(ids)})
        return bool(found and await prune(connection, sql, retention.expired_chains(found), wait=True))
