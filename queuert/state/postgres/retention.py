"""Parameters and rows of the pruning statements. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from queuert.errors import InvalidCursorError
from queuert.jobs import ChainStatus, TtlUpdate
from queuert.policies import Keep, Retention
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.types import PruneRequest


@dataclass(frozen=True, slots=True)
class PruneCandidate:
    """A chain that may be pruned, as it was when it was selected."""

    id: str
    closed_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of candidates ended: at an expired chain, or at one of a type and outcome."""

    id: str
    at: str
    """ISO: its end, or its start."""
    type: str | None = None
    status: str | None = None

    def encode(self) -> str:
        """Returns the place as a cursor."""
        return json.dumps([self.id, self.at, self.type, self.status])

    @staticmethod
    def decode(cursor: str) -> Place:
        """Returns the place of a cursor.

        Raises:
            InvalidCursorError: the cursor is not valid.
        """
        try:
            id, at, type, status = json.loads(cursor)
            datetime.fromisoformat(at)
            if isinstance(id, str) and isinstance(type, str | None) and isinstance(status, str | None):
                return Place(id, at, type, status)
        except (TypeError, ValueError):
            pass
        raise InvalidCursorError(cursor)


def place_of(request: PruneRequest) -> Place | None:
    """Returns where the page begins; None: at the beginning."""
    return None if request.cursor is None else Place.decode(request.cursor)


def expired(place: Place | None, limit: int) -> Parameters:
    """Parameters of ``find_expired``."""
    return {"after": None if place is None else place.at, "after_id": "" if place is None else place.id, "limit": limit}


def expired_chains(rows: Iterable[Row]) -> list[PruneCandidate]:
    """The rows of ``find_expired`` and ``find_expired_ids``."""
    return [PruneCandidate(row[0], row[1], row[2]) for row in rows]


def cursor_after_expired(found: Sequence[PruneCandidate]) -> Place:
    """Returns where a page of expired chains ended."""
    last = found[-1]
    assert last.expires_at is not None
    return Place(last.id, last.expires_at.isoformat())


def retention_ranges(policies: Iterable[tuple[str, Retention]]) -> list[tuple[str, str, Keep]]:
    """Returns the types and outcomes that have a retention policy, in order."""
    found = [
        (type, status.value, keep)
        for type, policy in policies
        for status in (ChainStatus.CANCELLED, ChainStatus.COMPLETED, ChainStatus.FAILED)
        if (keep := getattr(policy, status.value)) is not None
    ]
    return sorted(found, key=lambda stretch: stretch[:2])


def beyond_retention(
    request: PruneRequest, place: Place | None, limit: int
) -> tuple[list[tuple[str, str, Keep]], Parameters]:
    """Returns the ranges that ``find_beyond_retention`` reads, and its parameters."""
    left = retention_ranges(request.policies.items())
    begun = None
    if place is not None and place.type is not None and place.status is not None:
        begun = (place.type, place.status)
        left = [stretch for stretch in left if stretch[:2] >= (place.type, place.status)]
    lows = [(place.at, place.id) if place is not None and one[:2] == begun else ("-infinity", "") for one in left]
    return left, {
        "types": [type for type, _, _ in left],
        "statuses": [status for _, status, _ in left],
        "ages": [keep.seconds for _, _, keep in left],
        "counts": [keep.count for _, _, keep in left],
        "lows": [at for at, _ in lows],
        "low_ids": [id for _, id in lows],
        "limit": limit,
    }


def chains_beyond_retention(rows: Iterable[Row]) -> list[PruneCandidate]:
    """Returns the chains to be pruned, from the rows of ``find_beyond_retention``."""
    return [PruneCandidate(row[1], row[3]) for row in rows if row[4]]


def cursor_after_retention(left: Sequence[tuple[str, str, Keep]], row: Row) -> Place:
    """Returns where a page ended, from the last row of ``find_beyond_retention``."""
    type, status, _ = left[row[0] - 1]
    return Place(row[1], row[2].isoformat(), type, status)


def ids(to_delete: Iterable[PruneCandidate]) -> Parameters:
    """Parameters of ``lock_prunable``."""
    return {"ids": [one.id for one in to_delete]}


def pruned(to_delete: Sequence[PruneCandidate], locked: Iterable[Row]) -> Parameters:
    """Parameters of ``prune``."""
    return {
        **ids(to_delete),
        "closed": [one.closed_at for one in to_delete],
        "expires": [one.expires_at for one in to_delete],
        "locked": [row[0] for row in locked],
    }


def gone(to_delete: Iterable[PruneCandidate], rows: Iterable[Row]) -> list[str]:
    """The chains that were deleted, from the rows of ``prune``, in the order in which they were chosen."""
    chains = {row[1] for row in rows}
    return [one.id for one in to_delete if one.id in chains]


def ttl_updates(params: Sequence[str], rows: Iterable[Row]) -> list[TtlUpdate]:
    """The result of each chain, from the rows of ``update_result_ttl``."""
    found = {id: TtlUpdate.OPEN if status == ChainStatus.OPEN else TtlUpdate.UPDATED for id, status in rows}
    return [found.get(id, TtlUpdate.NOT_FOUND) for id in params]
