"""In which order claims take what is due: each type of job gets its turn, and each rank does.

Of the jobs of one rank, a claim gives each type its turn, in the order in which it names them. The next one begins with
the type behind the one that was served last, so that types share also where a claim takes a single job.

A better rank goes before a worse one, and there may always be some of a better one: then a job of low priority, or one
that has failed, would wait for ever. So one claim in eight begins behind the rank that is served anyway, the next such
claim behind the rank that this one came to, and round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from queuert.ids import new_token
from queuert.limits import Limits
from queuert.state.types import ClaimedJob, ClaimRequest

ROUND = 8
"""Of so many claims that take something, one begins with worse ranks."""

LONGEST_ROUND = 64
"""Of so many, where there were none of a worse rank: such a claim looks twice."""


class ClaimOrder:
    """The requests of one worker."""

    def __init__(self, leases: Mapping[str, float], limits: Mapping[str, Limits], *, holder: str) -> None:
        self._leases = dict(leases)
        self._limits = dict(limits)
        self._holder = holder
        self._claims = 0
        """That took something since the last one that began with worse ranks."""
        self._round = ROUND
        self._served = 0
        """The worst rank of what the last ordinary claim took."""
        self._reached: int | None = None
        """The rank that the last claim came to that began with worse ones; None: it found none."""

    def request(self, limit: int, max_bytes: int) -> ClaimRequest:
        """What to ask the store for: up to ``limit`` jobs, with inputs of up to ``max_bytes`` together."""
        after_rank = None
        if self._claims >= self._round - 1:
            after_rank = self._served if self._reached is None else self._reached
        return ClaimRequest(self._leases, limit, self._holder, new_token(), self._limits, max_bytes, after_rank)

    def note(self, request: ClaimRequest, jobs: Sequence[ClaimedJob]) -> None:
        """A request was answered with these."""
        if not jobs:
            if request.after_rank is not None:
                self._claims = 0
            return
        worst = max(job.rank for job in jobs)
        self._rotate(Counter(job.type for job in jobs if job.rank == worst))
        if request.after_rank is None:
            self._claims += 1
            self._served = worst
            return
        self._claims = 0
        worse = [job.rank for job in jobs if job.rank > request.after_rank]
        if worse:
            self._round = ROUND
        elif self._reached is None:
            self._round = min(2 * self._round, LONGEST_ROUND)
        # The store has taken the best of the worse ranks, so this is where it began.
        self._reached = min(worse, default=None)

    def _rotate(self, taken: Counter[str]) -> None:
        """Let the next claim begin with the type behind the one that was served last."""
        if len(self._leases) == 1:
            return
        types = list(self._leases)
        turns = max(taken.values())
        last = max(at for at, type in enumerate(types) if taken[type] == turns)
        self._leases = {type: self._leases[type] for type in (*types[last + 1 :], *types[: last + 1])}
