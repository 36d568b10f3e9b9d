"""Pruning: parameters of the statements, and their rows. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from queuert.errors import InvalidCursorError
from queuert.jobs import ChainStatus, TtlUpdate
from queuert.policies import Keep, Retention
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import DeletedJob, Row
from queuert.state.types import PruneRequest


@dataclass(frozen=True, slots=True)
class PruneCandidate:
    """A chain that may be pruned, as it was when it was selected."""

    id: str
    closed_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PruneCursor:
    """The cursor of a prune: after an expired chain, or after a chain of one type and outcome."""

    id: str
    at: str
    """A time in ISO format: when the chain expires, or when it was started."""
    type: str | None = None
    status: str | None = None

    def encode(self) -> str:
        """Return the position as a cursor."""
        return json.dumps([self.id, self.at, self.type, self.status])

    @staticmethod
    def decode(cursor: str) -> PruneCursor:
        """Decode a cursor.

        Raises:
            InvalidCursorError: the cursor is not valid.
        """
        try:
            id, at, type, status = json.loads(cursor)
            datetime.fromisoformat(at)
            if isinstance(id, str) and isinstance(type, str | None) and isinstance(status, str | None):
                return PruneCursor(id, at, type, status)
        except (TypeError, ValueError):
            pass
        raise InvalidCursorError(cursor)


def cursor_of(request: PruneRequest) -> PruneCursor | None:
    """Return where the page begins; None for the beginning."""
    return None if request.cursor is None else PruneCursor.decode(request.cursor)


def expired(cursor: PruneCursor | None, limit: int, closed_before: datetime | None = None) -> Parameters:
    """Return the parameters of ``find_expired``."""
    return {
        "closed_before": closed_before,
        "after": None if cursor is None else cursor.at,
        "after_id": "" if cursor is None else cursor.id,
        "limit": limit,
    }


def expired_chains(rows: Iterable[Row]) -> list[PruneCandidate]:
    """Decode the rows of ``find_expired_ids``, and those of ``find_expired`` that nobody holds back."""
    return [PruneCandidate(id, closed_at, expires_at) for id, closed_at, expires_at, *held in rows if not any(held)]


def cursor_after_expired(row: Row) -> PruneCursor:
    """Return the cursor after a page of expired chains, from its last row."""
    id, _, expires_at, _ = row
    return PruneCursor(id, expires_at.isoformat())


def retention_ranges(policies: Iterable[tuple[str, Retention]]) -> list[tuple[str, str, Keep]]:
    """Return the types and outcomes that have a retention policy, in order."""
    found = [
        (type, status.value, keep)
        for type, policy in policies
        for status in (ChainStatus.CANCELLED, ChainStatus.COMPLETED, ChainStatus.FAILED)
        if (keep := policy.bound(status)) is not None
    ]
    return sorted(found, key=lambda stretch: stretch[:2])


def beyond_retention(
    request: PruneRequest, cursor: PruneCursor | None, limit: int
) -> tuple[list[tuple[str, str, Keep]], Parameters]:
    """Return the ranges that ``find_beyond_retention`` reads, and its parameters."""
    left = retention_ranges(request.policies.items())
    begun = None
    if cursor is not None and cursor.type is not None and cursor.status is not None:
        begun = (cursor.type, cursor.status)
        left = [stretch for stretch in left if stretch[:2] >= (cursor.type, cursor.status)]
    lows = [(cursor.at, cursor.id) if cursor is not None and one[:2] == begun else ("-infinity", "") for one in left]
    return left, {
        "closed_before": request.closed_before,
        "types": [type for type, _, _ in left],
        "statuses": [status for _, status, _ in left],
        "ages": [keep.seconds for _, _, keep in left],
        "counts": [keep.count for _, _, keep in left],
        "stales": [keep.stale_seconds for _, _, keep in left],
        "lows": [at for at, _ in lows],
        "low_ids": [id for _, id in lows],
        "limit": limit,
    }


def chains_beyond_retention(
    request: PruneRequest, rows: Iterable[Row]
) -> tuple[list[PruneCandidate], list[PruneCandidate]]:
    """Decode the rows of ``find_beyond_retention``: the chains to delete, and those to mark as stale."""
    found = [
        (PruneCandidate(id, closed_at), action)
        for _, id, _, closed_at, action in rows
        if action and request.includes(id, action)
    ]
    to_delete, to_mark = ([one for one, action in found if action == wanted] for wanted in ("delete", "mark"))
    return to_delete, to_mark


def cursor_after_retention(left: Sequence[tuple[str, str, Keep]], row: Row) -> PruneCursor:
    """Return the cursor after a page, from the last row of ``find_beyond_retention``."""
    place, id, created_at, _, _ = row
    type, status, _ = left[place - 1]
    return PruneCursor(id, created_at.isoformat(), type, status)


def deletable(to_delete: Iterable[PruneCandidate], needed: Iterable[Row]) -> list[str]:
    """Return the chains that no open job needs, by the rows of ``find_needed``."""
    left_out = {id for (id,) in needed}
    return [one.id for one in to_delete if one.id not in left_out]


def marked(to_mark: Sequence[PruneCandidate]) -> Parameters:
    """Return the parameters of ``mark_stale``."""
    return {"ids": [one.id for one in to_mark], "closed": [one.closed_at for one in to_mark]}


def ids(to_delete: Iterable[PruneCandidate]) -> Parameters:
    """Return the parameters of ``lock_prunable``."""
    return {"ids": [one.id for one in to_delete]}


def pruned(
    to_delete: Sequence[PruneCandidate], locked: Iterable[Row], closed_before: datetime | None = None
) -> Parameters:
    """Return the parameters of ``prune``."""
    return {
        **ids(to_delete),
        "closed": [one.closed_at for one in to_delete],
        "expires": [one.expires_at for one in to_delete],
        "locked": [id for (id,) in locked],
        "closed_before": closed_before,
    }


def gone(to_delete: Iterable[PruneCandidate], deleted: Iterable[DeletedJob]) -> list[str]:
    """Return the chains that were deleted, in the order of the candidates."""
    chains = {job.chain_id for job in deleted}
    return [one.id for one in to_delete if one.id in chains]


def ttl_updates(params: Sequence[str], rows: Iterable[Row]) -> list[TtlUpdate]:
    """Return the result of each chain, from the rows of ``update_result_ttl``."""
    found = {id: TtlUpdate.OPEN if status == ChainStatus.OPEN else TtlUpdate.UPDATED for id, status in rows}
    return [found.get(id, TtlUpdate.NOT_FOUND) for id in params]
