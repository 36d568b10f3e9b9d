"""The settings of a run, and the names that its processes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queuert.cli.exit_codes import UsageError
from queuert.errors import QueuertError

SCHEMA = "queuert_demo"
"""The schema of the demo's own tables and of Queuert's, so that one ``drop schema`` removes all."""

PROCESSORS = "queuert.demo.jobs:processors"

JOB_TYPES = "queuert.demo.job_types:job_types"

LEASE_VARIABLE = "QUEUERT_DEMO_LEASE"
"""The environment variable that tells the workers how long a lease lasts."""

_SHORTEST_LEASE = 0.5


class DemoError(QueuertError):
    """The demo failed; the message says which part, and how."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of a run.

    Attributes:
        url: a Postgres to use; None starts one.
        spark: whether Spark reads the files.
        files: at most so many; None for all.
        workers: worker processes at a time.
        concurrency: slots of each.
        lease: seconds until a job of a dead worker can run again.
        report: where the report goes; None for a temporary file.
        keep: leave the database and the logs.
        dashboard: whether the dashboard is served while it runs.

    Raises:
        UsageError: an option is out of range.
    """

    url: str | None = None
    spark: bool = True
    files: int | None = None
    workers: int = 2
    concurrency: int = 8
    lease: float = 3.0
    report: Path | None = None
    keep: bool = False
    dashboard: bool = True

    def __post_init__(self) -> None:
        if self.lease < _SHORTEST_LEASE:
            raise UsageError(
                f"--lease must be {_SHORTEST_LEASE:g} seconds or more, got {self.lease:g}: live workers would lose jobs"
            )
        if self.report is not None and not self.report.parent.is_dir():
            raise UsageError(
                f"--report must be in an existing directory, got {self.report}: no directory {self.report.parent}"
            )

    @property
    def slots(self) -> int:
        """Handlers that run at once, in all workers."""
        return self.workers * self.concurrency
