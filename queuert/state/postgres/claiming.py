"""Claims: the sizes of their inputs, and the parameters and rows of claims under limits.

A claim is bounded by bytes. Postgres tells how much it has stored of an input without reading it, and whether that is
compressed. Only reading the input would tell how long its text is, which takes as long as a claim. So a store estimates
the length by the inputs of its last claims, and at first by the worst ratio. A wrong estimate makes a claim smaller
than it might be, or larger by what inputs differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from queuert.limits import Limits
from queuert.state.postgres.claim_cursors import HEAD
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.types import ClaimRequest

WORST = 100.0
"""A match of Postgres's own compression is 273 bytes long at most and takes 3."""

_CLAIMS = 8
"""Number of claims with compressed inputs that an estimate is based on."""

_MARGIN = 1.5

INPUT, PACKED = 11, 19
"""Where a row of a claim has the input, and what is stored of it if that is compressed."""


class Expansion:
    """The greatest number of characters a byte in the compressed inputs of the last claims."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_CLAIMS)

    @property
    def factor(self) -> float:
        """The factor by which to multiply the stored size of a compressed input."""
        return min(WORST, max(1.0, _MARGIN * max(self._seen))) if self._seen else WORST

    def note(self, rows: Sequence[Row]) -> None:
        """Records the rows of a claim."""
        packed = [row for row in rows if row[PACKED] is not None]
        if packed:
            self._seen.append(max(len(row[INPUT] or "") / row[PACKED] for row in packed))


_MOST_KEYS = 500
"""Keys of one type that one claim visits at most; the next claim continues after them."""

_AT_LEAST = 200
"""Rows that one claim may promote or delete, or as many as it may take jobs, if that is more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The jobs that the limits admit."""

    ids: Sequence[str]
    """Ids of jobs of types with limits."""
    others: int
    """How many of the best belong to types without limits."""
    cursors: Mapping[str, str]
    """The keys where the next walks begin, of types of which not all keys were visited."""


def limits_of(request: ClaimRequest) -> dict[str, Limits]:
    """The limits of the types that are asked for and have any, in one order."""
    return {type: request.limits[type] for type in sorted(request.limits.keys() & request.leases.keys())}


def unlimited(request: ClaimRequest, limit: int) -> ClaimRequest:
    """The part of the request that has no limits."""
    leases = {type: seconds for type, seconds in request.leases.items() if type not in request.limits}
    return replace(request, leases=leases, limit=limit, limits={})


def promote(request: ClaimRequest) -> Parameters:
    """Parameters of ``lock_limits`` and ``promote_due``."""
    return {"types": list(limits_of(request)), "limit": max(_AT_LEAST, request.limit)}


def select_admissible(
    request: ClaimRequest, limit: int, cursors: Mapping[str, str], passed_over: Sequence[str]
) -> Parameters:
    """Parameters of ``select_admissible``; beyond a rank, if the request says so."""
    limits = limits_of(request)
    rates = [one.rate for one in limits.values()]
    return {
        "limit": limit,
        "limited": list(limits),
        "concurrencies": [one.concurrency for one in limits.values()],
        "per_keys": [one.per_key for one in limits.values()],
        "starts": [rate and rate.count for rate in rates],
        "windows": [rate and rate.seconds for rate in rates],
        "cursors": [cursors.get(type, "") for type in limits],
        "others": [type for type in request.leases if type not in limits],
        "types": list(request.leases),
        "first_rank": HEAD[0] if request.after_rank is None else request.after_rank + 1,
        "passed_over": list(passed_over),
        "most_keys": _MOST_KEYS,
    }


def admission(rows: Sequence[Row]) -> Admission:
    """The rows of ``select_admissible``."""
    return Admission(
        ids=[row[0] for row in rows if row[0] is not None],
        others=sum(row[0] is None and row[1] is None for row in rows),
        cursors={row[1]: row[2] for row in rows if row[1] is not None},
    )


def claim_admitted(request: ClaimRequest, ids: Sequence[str], *, expansion: float = 1.0, taken: int = 0) -> Parameters:
    """Parameters of ``claim_admitted``; ``taken`` is the size of inputs that were claimed before."""
    limits = limits_of(request)
    return {
        "types": list(limits),
        "leases": [request.leases[type] for type in limits],
        "rated": [type for type, one in limits.items() if one.rate is not None],
        "ids": list(ids),
        "max_bytes": max(0, request.max_bytes - taken),
        "expansion": expansion,
        "token": request.token,
        "holder": request.holder,
    }


def input_size(found: Sequence[Row]) -> int:
    """How long the inputs of claimed jobs are together."""
    return sum(len(row[INPUT] or "") for row in found)


def forget(request: ClaimRequest) -> Parameters:
    """Parameters of ``prune_rate_window``; no types, if none has a rate."""
    windows = {type: one.rate.seconds for type, one in limits_of(request).items() if one.rate is not None}
    most = max(_AT_LEAST, 2 * request.limit)
    return {"types": list(windows), "windows": list(windows.values()), "limits": [most] * len(windows)}
