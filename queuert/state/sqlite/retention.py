"""Expiry and pruning of closed chains, inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from queuert.errors import InvalidCursorError
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus, TtlUpdate
from queuert.policies import Keep, checked_ttl
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import fetch_one, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.listing import delete_chain_rows, first_job
from queuert.state.types import PruneRequest, PruneResult

Connection = sqlite3.Connection


@dataclass(frozen=True, slots=True)
class _PruneCursor:
    """The cursor of a prune: after an expired chain (without a type), or after a chain of a type and outcome."""

    at: int
    id: str
    type: str | None = None
    status: str | None = None

    def encode(self) -> str:
        return json.dumps([self.at, self.id, self.type, self.status])

    @staticmethod
    def decode(cursor: str) -> _PruneCursor:
        try:
            at, id, type, status = json.loads(cursor)
        except (TypeError, ValueError, RecursionError):
            raise InvalidCursorError(cursor) from None
        texts = isinstance(id, str) and isinstance(type, str | None) and isinstance(status, str | None)
        if not texts or not isinstance(at, int) or abs(at) >= 1 << 63 or (type is None) != (status is None):
            raise InvalidCursorError(cursor)
        return _PruneCursor(at, id, type, status)


def update_ttl(connection: Connection, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
    """Let closed chains expire ``seconds`` from now."""
    lasting = rows.microseconds_of(checked_ttl("result_ttl", seconds))
    return [_update_one(connection, chain_id, now_us(), lasting) for chain_id in ids]


def _update_one(connection: Connection, chain_id: str, now: int, lasting: int) -> TtlUpdate:
    first = first_job(connection, chain_id)
    if first is None or first.chain_index != 0 or (first.expires_at is not None and first.expires_at <= now):
        return TtlUpdate.NOT_FOUND
    if first.chain_status == ChainStatus.OPEN:
        return TtlUpdate.OPEN
    run(connection, "update_result_ttl", id=chain_id, expires=now + lasting)
    return TtlUpdate.UPDATED


def prune(connection: Connection, request: PruneRequest) -> PruneResult:
    """Delete closed chains that have expired, or that the retention of their type does not keep."""
    now = now_us()
    cursor = None if request.cursor is None else _PruneCursor.decode(request.cursor)
    gone: list[str] = []
    stale: list[str] = []
    left = request.limit
    before = None if request.closed_before is None else rows.microseconds(request.closed_before)
    if request.expired and (cursor is None or cursor.type is None):
        begun = cursor or _PruneCursor(0, "")
        expired = run(
            connection,
            "find_expired",
            now=now,
            after=begun.at,
            after_id=begun.id,
            closed_before=before,
            limit=left,
        )
        gone += _deleted(connection, [id for id, _, is_needed in expired if not is_needed])
        left -= len(expired)
        if left <= 0:
            last_id, expires_at, _ = expired[-1]
            return PruneResult(gone, _PruneCursor(expires_at, last_id).encode())
        cursor = None
    for type, status, keep in _stretches(request):
        if cursor is not None and (type, status) < (cursor.type or "", cursor.status or ""):
            continue
        begun = cursor if cursor is not None and (type, status) == (cursor.type, cursor.status) else _PruneCursor(0, "")
        begun = replace(begun, type=type, status=status)
        found, number, behind = _beyond_retention(connection, begun, keep, now, before, left)
        chosen = [(id, action) for id, action in found if action and request.includes(id, action)]
        to_delete, to_mark = ([id for id, one in chosen if one == action] for action in ("delete", "mark"))
        if request.preview:
            gone += [id for id in to_delete if not _is_needed(connection, id)]
        else:
            gone += _deleted(connection, to_delete)
        stale += to_mark if request.preview else _marked(connection, to_mark, now)
        left -= number
        if left <= 0:
            return PruneResult(gone, behind.encode(), stale)
    return PruneResult(gone, None, stale)


def _stretches(request: PruneRequest) -> list[tuple[str, str, Keep]]:
    """Return the types and outcomes that have a retention policy, in order."""
    statuses = (ChainStatus.CANCELLED, ChainStatus.COMPLETED, ChainStatus.FAILED)
    found = [
        (type, status.value, keep)
        for type, policy in request.policies.items()
        for status in statuses
        if (keep := policy.bound(status)) is not None
    ]
    return sorted(found, key=lambda stretch: stretch[:2])


def _beyond_retention(
    connection: Connection, cursor: _PruneCursor, keep: Keep, now: int, before: int | None, limit: int
) -> tuple[list[tuple[str, str | None]], int, _PruneCursor]:
    """Return chains of a type and outcome and what is to be done with each, how many there are, and the cursor after
    the last of them."""
    about = {"type": cursor.type, "status": cursor.status}
    cut = None if keep.seconds is None else now - rows.microseconds_of(keep.seconds)
    mark = None if keep.count is None else fetch_one(connection, "retention_cutoff", count=keep.count, **about)
    mark_at, mark_id = mark or (None, None)
    high = max((one for one in (cut, mark_at) if one is not None), default=None)
    if high is None:
        return [], 0, cursor
    stale = None if keep.stale_seconds is None else now - rows.microseconds_of(keep.stale_seconds)
    bounds = {
        "closed_before": before,
        "stale": stale,
        "cut": cut,
        "mark": mark_at,
        "mark_id": mark_id,
        "high": high,
        "low": cursor.at,
        "low_id": cursor.id,
    }
    found = run(connection, "find_beyond_retention", limit=limit, **bounds, **about)
    if not found:
        return [], 0, cursor
    last_id, created_at, _ = found[-1]
    return [(id, action) for id, _, action in found], len(found), replace(cursor, at=created_at, id=last_id)


def _marked(connection: Connection, chain_ids: Iterable[str], now: int) -> list[str]:
    """Mark closed chains as stale; return them."""
    marked = list(chain_ids)
    for chain_id in marked:
        run(connection, "mark_stale", id=chain_id, now=now)
        add_event(connection, EventKind.STALE, chain_id)
    return marked


def delete_expired(connection: Connection, chain_id: str) -> bool:
    """Delete an expired chain, so that its id can be used again. Returns whether that was possible."""
    return bool(_deleted(connection, [chain_id]))


def _is_needed(connection: Connection, chain_id: str) -> bool:
    """Whether a chain is a blocker of a job that has not ended."""
    return not all(JobStatus(status).final for _, _, status in run(connection, "references", id=chain_id))


def _deleted(connection: Connection, chain_ids: Iterable[str]) -> list[str]:
    """Delete closed chains, and their entries as blockers of finished jobs; return those that were deleted.

    A chain that is a blocker of an unfinished job is kept.
    """
    gone = []
    for chain_id in chain_ids:
        if not _is_needed(connection, chain_id):
            if fetch_one(connection, "is_stale", id=chain_id) == (1,):
                for job_id, _ in run(connection, "chain_jobs", id=chain_id):
                    add_event(connection, EventKind.DELETED, job_id)
            for step in ("delete_references", "delete_blockers"):
                run(connection, step, id=chain_id)
            delete_chain_rows(connection, chain_id)
            gone.append(chain_id)
    return gone
