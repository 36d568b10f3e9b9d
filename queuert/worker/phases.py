"""Phases of an attempt: declared steps with progress of their own, and the progress of the job that they make up.

The arithmetic. How a phase is called, recorded and replayed is in ``steps.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from queuert.errors import StepMisuseError
from queuert.job_types import JobType
from queuert.jobs import JobError, JobProgress, PhaseProgress
from queuert.phases import checked_weight
from queuert.progress import stored_progress
from queuert.state.records import job_progress
from queuert.state.types import ClaimedJob
from queuert.worker.finishes import error_of


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """A phase that was begun, completed, or left by an exception: for observers."""

    kind: Literal["started", "completed", "failed"]
    phase: PhaseProgress
    duration: float = 0.0
    """Seconds since it was begun."""
    error: JobError | None = None


class PhaseTracker:
    """The phases of one attempt: which one runs, and the progress of the job.

    Any thread may record progress. What it records is stored, or withdrawn, before a phase that ends is: each method
    that changes something holds the lock until it has passed on what is to be stored.

    Attributes:
        knows_progress: whether the progress of earlier attempts is known, so that this one takes nothing back.
    """

    __slots__ = (
        "_began_at", "_current", "_fraction", "_job", "_job_type", "_lock", "_names", "_running", "_weights",
        "knows_progress",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, job_type: JobType[Any, Any]) -> None:
        self._job = job
        self._job_type = job_type
        self._weights = dict(job_type.phases)
        self._names = tuple(job_type.phases)
        self._lock = threading.Lock()
        self._fraction = 0.0
        self._current: PhaseProgress | None = None
        self._running = False
        self._began_at = 0.0
        self.knows_progress = job.attempt == 1

    def check(self, name: str, weight: float | None) -> None:
        """Check that a phase may be run next, and set its weight.

        Raises:
            StepMisuseError: it is not declared, or is declared before one that was begun.
            ConfigurationError: the weight is not valid.
        """
        if name not in self._weights:
            declared = ", ".join(self._names) or "none"
            raise StepMisuseError(
                f"phase {name!r} must be declared with JobType({self._job_type.name!r}, phases=...), got {declared}"
            )
        if self._current is not None and self._number(name) < self._current.number:
            raise StepMisuseError(
                f"phases must be run in the order in which job type {self._job_type.name!r} declares them, got "
                f"{name!r} after {self._current.name!r}"
            )
        if weight is not None:
            with self._lock:
                self._weights[name] = checked_weight(name, weight)

    def continue_from(self, stored: str | None) -> None:
        """Continue from the progress that earlier attempts have stored."""
        progress = job_progress(stored, self._job.attempt)
        if progress is not None and progress.phase is not None and progress.fraction is not None:
            self._fraction = max(self._fraction, progress.fraction)
        self.knows_progress = True

    def replay(self, name: str) -> None:
        """Pass a phase that an earlier attempt has completed."""
        with self._lock:
            self._current = self._phase(name, 1.0)

    def begin(self, name: str) -> str:
        """Begin a phase, and return the progress to store."""
        with self._lock:
            self._current = self._phase(name, 0.0)
            self._began_at = time.monotonic()
            return self._stored()

    @contextmanager
    def running(self, report: Callable[[PhaseReport], None]) -> Iterator[None]:
        """The function of the phase runs in this block, and may record progress."""
        report(self._report("started"))
        self._running = True
        try:
            yield
        except Exception as error:
            report(self._report("failed", error_of(error)))
            raise
        finally:
            with self._lock:
                self._running = False

    def complete(self) -> str:
        """The function has returned: return the progress to store with its result."""
        with self._lock:
            assert self._current is not None
            self._current = replace(self._current, fraction=1.0)
            return self._stored()

    def completed(self) -> PhaseReport:
        """The phase is completed: return what to report."""
        return self._report("completed")

    def record(self, progress: JobProgress, store: Callable[[str], None]) -> None:
        """Store what the handler has recorded, as progress of the phase that runs.

        Between phases only the message is new. Before the first one there is nothing to store, as it is not known how
        far earlier attempts were.
        """
        with self._lock:
            current = self._current
            if current is None or not self.knows_progress:
                return
            if self._running and progress.fraction is not None:
                # A handler may count backwards.
                current = self._current = replace(current, fraction=max(current.fraction, progress.fraction))
            recorded = replace(progress, fraction=self._overall(), phase=current)
            store(stored_progress(self._job_type, self._job.attempt, recorded))

    def _report(self, kind: Literal["started", "completed", "failed"], error: JobError | None = None) -> PhaseReport:
        assert self._current is not None
        return PhaseReport(kind, self._current, time.monotonic() - self._began_at, error)

    def _stored(self) -> str:
        progress = JobProgress(self._overall(), None, None, None, datetime.now(UTC), self._current)
        return stored_progress(self._job_type, self._job.attempt, progress)

    def _overall(self) -> float:
        current = self._current
        assert current is not None
        weights = [self._weights[name] for name in self._names]
        done = sum(weights[: current.number - 1]) + weights[current.number - 1] * current.fraction
        # A phase that begins again has to catch up, and a weight may have become known.
        self._fraction = max(self._fraction, min(done / sum(weights), 1.0))
        return self._fraction

    def _number(self, name: str) -> int:
        return self._names.index(name) + 1

    def _phase(self, name: str, fraction: float) -> PhaseProgress:
        count, attempt = len(self._names), self._job.attempt
        return PhaseProgress(name, self._number(name), count, fraction, attempt, datetime.now(UTC))
