"""The progress of the Spark work of an attempt, in tasks."""

from __future__ import annotations

from dataclasses import dataclass

CAP = 0.99
"""The largest fraction: a handler may do more than Spark knows of, so only the job's finish means that it is done."""


@dataclass(frozen=True, slots=True)
class SparkProgress:
    """The tasks of an attempt's Spark jobs so far.

    ``known`` grows while a query runs, since Spark plans its later stages as it goes, so ``done / known`` may fall.

    Attributes:
        done: tasks that are finished.
        known: tasks that Spark has planned so far, without those of stages that it skipped.
        active: tasks that run now.
        fraction: between 0 and 0.99; it never falls within one scope.
    """

    done: int = 0
    known: int = 0
    active: int = 0
    fraction: float = 0.0

    def advanced(self, tasks: TaskCounts) -> SparkProgress:
        """Return the progress after this one."""
        share = tasks.done / tasks.known if tasks.known else 0.0
        return SparkProgress(tasks.done, tasks.known, tasks.active, max(self.fraction, min(share, CAP)))


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The tasks of a stage, of a job, or of an attempt; ``open`` is the number of jobs that have not ended."""

    done: int = 0
    known: int = 0
    active: int = 0
    open: int = 0

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(
            self.done + other.done, self.known + other.known, self.active + other.active, self.open + other.open
        )
