"""Where the look for ready jobs begins, when the head of the index is full of entries that cannot be cleaned away.

A claim takes jobs from the head of an index, and leaves dead entries there. Postgres clears them in passing, but not
while a transaction is open that could still see them: a backup, a forgotten session. Then each claim walks over the
entries of all jobs that were claimed since. So once looks have become slow, they begin where the last one ended. Some
still begin at the head, as many as may cost a twentieth of the time: for jobs that became ready before that place, by a
higher priority, a retry or a late commit. While looks are quick all begin at the head.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

from queuert.state.types import ClaimedJob

Place = tuple[int, datetime]
"""A rank and a time: where an entry of the index stands within its type."""

HEAD: Place = (-(2**31), datetime(1, 1, 1, tzinfo=UTC))

SLOW = 0.003
"""Seconds of the server for a look at the head; one at some hundred jobs takes a tenth of it."""

_IN_A_ROW = 4
"""So many looks must have been slow: one may be by chance."""

_SHARE = 20
"""A look at the head takes place after so many times its own length."""


class ClaimCursors:
    """The places of one store, for every job type.

    Each store keeps its own, since a wrong one does no more harm than to find a job later.
    """

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._looks: deque[float] = deque(maxlen=_IN_A_ROW)
        self._head_at = 0.0
        """When to look at the head next (monotonic)."""

    @property
    def slow(self) -> bool:
        """Whether looks at the head have become slow."""
        return len(self._looks) == _IN_A_ROW and min(self._looks) > SLOW

    def places(self, types: Sequence[str]) -> list[Place] | None:
        """Where to begin, for each type; None: at the head."""
        if not self.slow or time.monotonic() >= self._head_at:
            return None
        return [self._places.get(type, HEAD) for type in types]

    def note(self, jobs: Sequence[ClaimedJob], seconds: float, *, at_head: bool) -> None:
        """A look that took so long on the server found these."""
        if at_head:
            self._looks.append(seconds)
            # It is done twice: first without locks.
            self._head_at = time.monotonic() + 2 * _SHARE * seconds
        if not self.slow:
            self._places.clear()
            return
        for job in jobs:
            # As it was before the claim, which counted one attempt more.
            place = (job.own_failures - 1 - job.priority, job.scheduled_at)
            if place > self._places.get(job.type, HEAD):
                self._places[job.type] = place
