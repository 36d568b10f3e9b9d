"""Where claims begin to scan for ready jobs, when the head of the index is full of dead entries.

A claim takes jobs from the head of an index and leaves dead entries there. Postgres removes them in passing, but not
while a transaction is open that could still see them, such as a backup or a forgotten session. Then each claim scans
the entries of all jobs that were claimed since. So once scans have become slow, they begin where the last one ended.
Some still begin at the head, which may cost a twentieth of the time: they find jobs that became ready before that
cursor, by a higher priority, a retry or a late commit. While scans are quick, all begin at the head.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

from queuert.state.types import ClaimedJob

IndexPosition = tuple[int, datetime]
"""The position of an index entry within its type: a rank and a time."""

HEAD: IndexPosition = (-(2**31), datetime(1, 1, 1, tzinfo=UTC))

SLOW = 0.003
"""Seconds on the server from which a scan from the head counts as slow. A scan of some hundred jobs takes a tenth."""

_IN_A_ROW = 4
"""The number of consecutive slow scans after which cursors are used, since one slow scan may be chance."""

_SHARE = 20
"""The head is scanned again after this many times the duration of its last scan."""


class ClaimCursors:
    """The cursors of one store, for every job type.

    Each store keeps its own, since a wrong one does no more harm than to find a job later.
    """

    def __init__(self) -> None:
        self._positions: dict[str, IndexPosition] = {}
        self._looks: deque[float] = deque(maxlen=_IN_A_ROW)
        self._head_at = 0.0
        """When to scan from the head next, as a time of the monotonic clock."""

    @property
    def slow(self) -> bool:
        """Whether scans from the head are slow."""
        return len(self._looks) == _IN_A_ROW and min(self._looks) > SLOW

    def positions(self, types: Sequence[str]) -> list[IndexPosition] | None:
        """Return where to begin for each type; None for the head."""
        if not self.slow or time.monotonic() >= self._head_at:
            return None
        return [self._positions.get(type, HEAD) for type in types]

    def note(self, jobs: Sequence[ClaimedJob], seconds: float, *, at_head: bool) -> None:
        """Record the jobs of a claim and the seconds that its scan took on the server."""
        if at_head:
            self._looks.append(seconds)
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
