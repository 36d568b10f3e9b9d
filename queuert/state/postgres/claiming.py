"""Claims: where they begin, how large their inputs are, and their parameters and rows. Pure functions, but for clocks.

A claim is bounded by bytes. Postgres knows the stored size of an input and whether it is compressed without reading it.
Only reading the input would tell the length of its text, which takes as long as a claim. So a store estimates the
length by the inputs of its last claims, and at first by the worst ratio. A wrong estimate makes a claim smaller than it
could be, or larger.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from queuert.limits import Limits
from queuert.state.postgres.parameters import Parameters, text_array
from queuert.state.postgres.rows import Row
from queuert.state.records import CLAIMED, columns_of, places
from queuert.state.types import ClaimedJob, ClaimRequest

IndexPosition = tuple[int, datetime]
"""The position of an index entry within its type: a rank and a time."""

BEST, _EARLIEST = -(2**31), datetime(1, 1, 1, tzinfo=UTC)
"""A rank and a time that are before all others."""

HEAD: IndexPosition = (BEST, _EARLIEST)

SLOW = 0.003
"""Seconds on the server from which a scan from the head counts as slow. A scan of some hundred jobs takes a tenth."""

_IN_A_ROW = 4
"""The number of consecutive slow scans after which cursors are used, since one slow scan may be chance."""

_SHARE = 20
"""The head is scanned again after this many times the duration of its last scan."""


class ClaimCursors:
    """Where claims of one store begin to scan for ready jobs, when the head of the index is full of dead entries.

    A claim takes jobs from the head of an index and leaves dead entries there. Postgres removes them in passing, but
    not while a transaction is open that could still see them, such as a backup or a forgotten session. Then each claim
    scans the entries of all jobs that were claimed since. So once scans have become slow, they begin where the last one
    ended. Some still begin at the head, which may cost a twentieth of the time: they find jobs that became ready before
    that cursor, by a higher priority, a retry or a late commit. While scans are quick, all begin at the head.

    Each store keeps cursors of its own, since a wrong one does no more harm than to find a job later.

    Attributes:
        slow: whether scans from the head have become slow.
    """

    def __init__(self) -> None:
        self.slow = False
        self._positions: dict[str, IndexPosition] = {}
        self._looks: deque[float] = deque(maxlen=_IN_A_ROW)
        self._head_at = 0.0
        """When to scan from the head next, as a time of the monotonic clock."""

    def positions(self, types: Sequence[str]) -> list[IndexPosition] | None:
        """Return where to begin for each type; None for the head."""
        if not self.slow or time.monotonic() >= self._head_at:
            return None
        return [self._positions.get(type, HEAD) for type in types]

    def note(self, jobs: Sequence[ClaimedJob], seconds: float, *, at_head: bool) -> None:
        """Record the jobs of a claim and the seconds that its scan took on the server."""
        if at_head:
            self._looks.append(seconds)
            self.slow = len(self._looks) == _IN_A_ROW and min(self._looks) > SLOW
            # A claim scans twice, first without locks.
            self._head_at = time.monotonic() + 2 * _SHARE * seconds
        if not self.slow:
            self._positions.clear()
            return
        for job in jobs:
            # The rank before the claim, which has counted one more attempt.
            position = (job.own_failures - 1 - job.priority, job.scheduled_at)
            if position > self._positions.get(job.type, HEAD):
                self._positions[job.type] = position


WORST = 100.0
"""The worst ratio of Postgres's compression: a match of up to 273 bytes is stored in 3."""

_CLAIMS = 8
"""The number of claims with compressed inputs that an estimate is based on."""

_MARGIN = 1.5

ID, INPUT, PACKED = *places(CLAIMED, "id", "input"), len(CLAIMED)
"""The columns of a claimed row with the id, the input, and, behind the fields, the input's stored size if it is
compressed."""

_TOKEN = columns_of(ClaimedJob).index("token")

SUMMARY = PACKED + 1
"""The first of the columns that say what the claim as a whole did; each statement has others."""


class Expansion:
    """Estimates the length of compressed inputs: the greatest ratio of length to stored size in the last claims.

    Attributes:
        factor: by which to multiply the stored size of a compressed input.
    """

    def __init__(self) -> None:
        self.factor = WORST
        self._seen: deque[float] = deque(maxlen=_CLAIMS)

    def note(self, rows: Sequence[Row]) -> None:
        """Records the rows of a claim."""
        packed = [row for row in rows if row[PACKED] is not None]
        if packed:
            self._seen.append(max(len(row[INPUT] or "") / row[PACKED] for row in packed))
            self.factor = min(WORST, max(1.0, _MARGIN * max(self._seen)))


class Space:
    """The bytes that the inputs of one request may still have, over all statements that claim for it.

    Attributes:
        begun: whether a job was claimed. The first one is claimed whatever its size; the others must fit.
        left: how many bytes are left.
        full: whether a job did not fit, or no byte is left: no more jobs are claimed then.
    """

    __slots__ = ("begun", "full", "left")

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.begun = False
        self.full = False

    def note(self, rows: Sequence[Row], *, cut: bool = False) -> None:
        """Record what a statement has claimed, and whether it has left a job for its size."""
        self.begun = self.begun or bool(rows)
        self.left = max(0, self.left - sum(len(row[INPUT] or "") for row in rows))
        self.full = self.full or cut or (self.begun and not self.left)


def claim(
    request: ClaimRequest,
    positions: Sequence[IndexPosition] | None = None,
    *,
    expansion: float = 1.0,
    space: Space | None = None,
) -> Parameters:
    """Return the parameters of ``claim``. It begins at the cursors, one for each type, or behind a rank, or at the
    head."""
    if request.after_rank is not None:
        positions = [(request.after_rank + 1, _EARLIEST)] * len(request.leases)
    return {
        "types": text_array(list(request.leases)),
        "leases": f"{{{','.join(map(repr, request.leases.values()))}}}",
        "first_ranks": None if positions is None else f"{{{','.join(str(rank) for rank, _ in positions)}}}",
        "first_times": None if positions is None else f"{{{','.join(when.isoformat() for _, when in positions)}}}",
        "limit": request.limit,
        **_bytes(request, space),
        "expansion": expansion,
        "token": request.token,
        "holder": request.holder,
    }


def claim_one_type(request: ClaimRequest, *, expansion: float, space: Space) -> Parameters:
    """Return the parameters of ``claim_one_type``."""
    [(type, lease)] = request.leases.items()
    return {
        "type": type,
        "lease": lease,
        "limit": request.limit,
        "max_bytes": space.left,
        "expansion": expansion,
        "token": request.token,
        "holder": request.holder,
    }


def _bytes(request: ClaimRequest, space: Space | None) -> Parameters:
    if space is None:
        return {"max_bytes": request.max_bytes, "begun": False}
    return {"max_bytes": space.left, "begun": space.begun}


LOOK_SECONDS, MISSING = SUMMARY, SUMMARY + 1
"""The columns of ``claim`` with the seconds that the scan for ready jobs took, and with the number of jobs that others
have locked: ``claim_rest`` may find others."""

TOO_LARGE = -1
"""``MISSING`` if not all inputs fit. Then ``claim`` has claimed nothing; ``claim_rest`` has chosen among them."""

MANY = 20
"""From this limit on ``claim_many`` is the quicker statement."""

CUT = SUMMARY
"""The column of ``claim_admitted`` that says whether jobs were left for their size. It has at least one row."""


def claimed_jobs(found: Sequence[Row], token: str) -> list[ClaimedJob]:
    """Rows of ``claim``, as jobs in the order in which they should run; an UPDATE returns them in any."""
    jobs = [
        ClaimedJob(*row[:_TOKEN], token, *row[_TOKEN:PACKED]) if type(row) is tuple else _unreadable_job(row, token)  # type: ignore[call-arg]
        for row in found
    ]
    if len(jobs) > 1:
        # As ``rank`` says, spelled out: it is asked for each job.
        jobs.sort(
            key=lambda job: (job.attempt - job.uncounted - job.lease_expirations - job.priority, job.scheduled_at)
        )
    return jobs


_NUMBERS = ("chain_index", "priority", "attempt", "uncounted", "lease_expirations", "blocker_count")
_TIMES = ("created_at", "scheduled_at", "started_at")
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_STAND_INS = {**dict.fromkeys(_NUMBERS, 0), **dict.fromkeys(_TIMES, _NO_TIME), "input": "", "lease_seconds": 60.0}


def _unreadable_job(row: Row, token: str) -> ClaimedJob:
    """Return the job with substitutes for the values that cannot be read. Its attempt fails before it uses them."""
    found: dict[str, Any] = dict(zip(CLAIMED, row, strict=False))
    values: dict[str, Any] = {name: _STAND_INS.get(name) if value is None else value for name, value in found.items()}
    return ClaimedJob(**values, token=token, fault=getattr(row, "fault", "?"))


_MOST_KEYS = 500
"""The largest number of keys of one type that one claim visits; the next claim continues after them."""

_AT_LEAST = 200
"""The number of rows that one claim may promote or delete; or as many as the claim's limit, if that is more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The jobs that the limits admit."""

    ids: Sequence[str]
    """Ids of admitted jobs, of types with limits."""
    others: int
    """How many of the best jobs belong to types without limits."""
    cursors: Mapping[str, str]
    """The keys where the next walks begin, for types of which not all keys were visited."""


def limits_of(request: ClaimRequest) -> dict[str, Limits]:
    """Return the limits of the requested types that have any, in a fixed order."""
    return {type: request.limits[type] for type in sorted(request.limits.keys() & request.leases.keys())}


def unlimited(request: ClaimRequest, limit: int) -> ClaimRequest:
    """Return the request without its types that have limits."""
    leases = {type: seconds for type, seconds in request.leases.items() if type not in request.limits}
    return replace(request, leases=leases, limit=limit, limits={})


def unbounded(request: ClaimRequest) -> ClaimRequest:
    """Return the request without its types of which limits can hold back jobs."""
    bounded = {type for type, limits in request.limits.items() if limits.bounded}
    leases = {type: seconds for type, seconds in request.leases.items() if type not in bounded}
    return replace(
        request, leases=leases, limits={type: request.limits[type] for type in request.limits.keys() - bounded}
    )


@dataclass(frozen=True, slots=True)
class FairClaim:
    """What a claim of types whose keys take turns did as a whole."""

    incomplete: bool
    """Whether another claim may find more: chosen jobs were locked by others, or scheduled jobs became ready."""
    cut: bool
    """Whether a job was left for its size."""
    claimed: Mapping[str, str]
    """The last key of each type of which a job was claimed."""
    walked: Mapping[str, str]
    """The last key of each type that was visited."""
    keys: Mapping[str, int]
    """The number of keys of each type that were visited and had jobs: all, if there are no more than jobs wanted."""


def claim_fair(
    request: ClaimRequest, cursors: Mapping[str, str], *, expansion: float = 1.0, space: Space | None = None
) -> Parameters:
    """Return the parameters of ``claim_fair``; the walks over the keys begin after the cursors."""
    return {
        "types": text_array(list(request.leases)),
        "leases": f"{{{','.join(map(repr, request.leases.values()))}}}",
        "fair": f"{{{','.join('t' if type in request.limits else 'f' for type in request.leases)}}}",
        "cursors": text_array([cursors.get(type, "") for type in request.leases]),
        "first_rank": None if request.after_rank is None else request.after_rank + 1,
        "promoted": max(_AT_LEAST, request.limit),
        "limit": request.limit,
        **_bytes(request, space),
        "expansion": expansion,
        "token": request.token,
        "holder": request.holder,
    }


def claim_next_key(request: ClaimRequest, cursors: Mapping[str, str]) -> Parameters:
    """Return the parameters of ``claim_next_key``, for a request of one job of one type."""
    [(type, lease)] = request.leases.items()
    return {
        "type": type,
        "lease": lease,
        "cursor": cursors.get(type, ""),
        "promoted": _AT_LEAST,
        "token": request.token,
        "holder": request.holder,
    }


def claim_next_keys(
    request: ClaimRequest, cursors: Mapping[str, str], *, expansion: float = 1.0, space: Space | None = None
) -> Parameters:
    """Return the parameters of ``claim_next_keys``, for a request of several jobs of one type."""
    return {
        **claim_next_key(request, cursors),
        "promoted": max(_AT_LEAST, request.limit),
        "limit": request.limit,
        "max_bytes": request.max_bytes if space is None else space.left,
        "expansion": expansion,
    }


def fair_claim(found: Sequence[Row], claimed: int) -> FairClaim:
    """Decode what the rows of ``claim_fair`` and of the claims of one type say of the claim as a whole."""
    chosen, promoted, cut, keys = found[0][SUMMARY : SUMMARY + 4]
    rows = json.loads(keys) if keys else []
    return FairClaim(
        incomplete=not cut and (chosen > claimed or promoted > 0),
        cut=cut,
        claimed={type: last for type, last, _, _ in rows if last is not None},
        walked={type: last for type, _, last, _ in rows if last is not None},
        keys={type: keys for type, _, _, keys in rows},
    )


def promote(request: ClaimRequest) -> Parameters:
    """Return the parameters of ``lock_limits`` and ``promote_due``."""
    limits = limits_of(request)
    bounded = [type for type, one in limits.items() if one.bounded]
    return {"types": list(limits), "bounded": bounded, "limit": max(_AT_LEAST, request.limit)}


def select_admissible(
    request: ClaimRequest, limit: int, cursors: Mapping[str, str], passed_over: Sequence[str]
) -> Parameters:
    """Return the parameters of ``select_admissible``."""
    limits = limits_of(request)
    rates = [one.rate for one in limits.values()]
    return {
        "limit": limit,
        "limited": list(limits),
        "concurrencies": [one.concurrency for one in limits.values()],
        "per_keys": [one.per_key for one in limits.values()],
        "starts": [rate and rate.count for rate in rates],
        "windows": [rate and rate.seconds for rate in rates],
        "fair": [one.fair for one in limits.values()],
        "ordered": [one.ordered for one in limits.values()],
        "cursors": [cursors.get(type, "") for type in limits],
        "others": [type for type in request.leases if type not in limits],
        "types": list(request.leases),
        "first_rank": BEST if request.after_rank is None else request.after_rank + 1,
        "passed_over": list(passed_over),
        "most_keys": _MOST_KEYS,
    }


def admission(rows: Sequence[Row]) -> Admission:
    """Decode the rows of ``select_admissible``."""
    return Admission(
        ids=[id for id, _, _ in rows if id is not None],
        others=sum(id is None and type is None for id, type, _ in rows),
        cursors={type: key for _, type, key in rows if type is not None},
    )


def claim_admitted(
    request: ClaimRequest, ids: Sequence[str], *, expansion: float = 1.0, space: Space | None = None
) -> Parameters:
    """Return the parameters of ``claim_admitted``."""
    limits = limits_of(request)
    return {
        "types": list(limits),
        "leases": [request.leases[type] for type in limits],
        "rated": [type for type, one in limits.items() if one.rate is not None],
        "ids": list(ids),
        **_bytes(request, space),
        "expansion": expansion,
        "token": request.token,
        "holder": request.holder,
    }


def forget(request: ClaimRequest) -> Parameters:
    """Return the parameters of ``prune_rate_window``; without types if none has a rate."""
    windows = {type: one.rate.seconds for type, one in limits_of(request).items() if one.rate is not None}
    most = max(_AT_LEAST, 2 * request.limit)
    return {"types": list(windows), "windows": list(windows.values()), "limits": [most] * len(windows)}
