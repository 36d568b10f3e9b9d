"""Claims under limits: parameters and rows of their statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from queuert.limits import Limits
from queuert.state.postgres.claim_cursors import HEAD
from queuert.state.postgres.expansion import INPUT
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.types import ClaimRequest

_MOST_KEYS = 500
"""Of one type, that one claim looks at; the next one goes on behind them."""

_AT_LEAST = 200
"""Rows that one claim promotes or deletes at most, if it may not take even more jobs."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the limits let through."""

    ids: Sequence[str]
    """Of jobs of limited types."""
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
