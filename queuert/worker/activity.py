"""Counts what a worker does, by job type and minute, and keeps it until the store has it."""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial

from queuert.activity import (
    BUCKETS,
    COUNTS,
    MINUTE,
    NUMBERS,
    RUN_BEGINS,
    WAIT_BEGINS,
    Activity,
    ActivityReport,
)
from queuert.state.types import FinishKind

MAX_PENDING = 2_000
"""Rows of minute and job type that wait for the store while it takes no reports; beyond, the oldest are dropped."""

_BITS = range(64)
"""As many bits as the milliseconds of any ``timedelta`` have."""

WAIT_AT = tuple(WAIT_BEGINS + min(bits, BUCKETS - 1) for bits in _BITS)
RUN_AT = tuple(RUN_BEGINS + min(bits, BUCKETS - 1) for bits in _BITS)
"""Where the bucket is of a duration whose whole milliseconds have so many bits."""

STARTED = COUNTS.index("started")
REJECTED = COUNTS.index("rejected")
REAPED = COUNTS.index("reaped")
ENDED_AT = {
    FinishKind.COMPLETE: COUNTS.index("completed"),
    FinishKind.CONTINUE: COUNTS.index("continued"),
    FinishKind.RETRY: COUNTS.index("retried"),
    FinishKind.FAIL: COUNTS.index("failed"),
    FinishKind.CANCEL: COUNTS.index("cancelled"),
    FinishKind.INTERRUPT: COUNTS.index("interrupted"),
    FinishKind.WAIT: COUNTS.index("waiting"),
}

_NONE = (0,) * NUMBERS


class ActivityCounter:
    """What one worker did since it last collected it, and what it has not yet reported.

    Those that count change the lists of ``counts`` while they hold ``lock``, from any thread. All else is called by the
    thread that sends heartbeats.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for increments only: the path of each job waits for it."""
        self.counts: defaultdict[str, list[int]] = _no_counts()
        """Numbers by job type: see :data:`~queuert.activity.NUMBERS`."""
        self._pending: dict[tuple[int, str], list[int]] = {}
        """Numbers by minute since 1970 and job type that no report has."""
        self._report: ActivityReport | None = None
        """The report that the store has not confirmed."""
        self._number = 0

    def count_one(self, type: str, index: int) -> None:
        """Count one attempt: for what is rare."""
        with self.lock:
            self.counts[type][index] += 1

    def collect(self, minute: int) -> int:
        """Add what was counted since the last call to this minute since 1970.

        Returns:
            The number of rows that were dropped, since the store has not taken a report for long.
        """
        if self.counts:
            with self.lock:
                counts, self.counts = self.counts, _no_counts()
            for type, numbers in counts.items():
                known = self._pending.get((minute, type), _NONE)
                self._pending[minute, type] = [a + b for a, b in zip(known, numbers, strict=True)]
        excess = sorted(self._pending)[: max(0, len(self._pending) - MAX_PENDING)]
        for key in excess:
            del self._pending[key]
        return len(excess)

    def report(self, worker: str) -> ActivityReport | None:
        """Return what is to be reported: the same as before, until it is confirmed."""
        if self._report is None and self._pending:
            self._number += 1
            pending, self._pending = self._pending, {}
            minutes = [
                Activity.of(datetime.fromtimestamp(minute * MINUTE, UTC), MINUTE, type, worker, numbers)
                for (minute, type), numbers in sorted(pending.items())
            ]
            self._report = ActivityReport(self._number, minutes)
        return self._report

    def confirmed(self) -> bool:
        """The store has the report. Return whether there is another."""
        self._report = None
        return bool(self._pending)


def _no_counts() -> defaultdict[str, list[int]]:
    return defaultdict(partial(list, _NONE))
