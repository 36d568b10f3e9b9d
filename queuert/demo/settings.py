"""What a run of the demo is to be, and the names that its processes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queuert.cli.exit_codes import UsageError
from queuert.errors import QueuertError

SCHEMA = "queuert_demo"
"""The schema of the demo's own tables and of Queuert's, so that one ``drop schema`` removes all."""

PROCESSORS = "queuert.demo.jobs:processors"

LEASE_VARIABLE = "QUEUERT_DEMO_LEASE"
"""The environment variable that tells the workers how long a lease lasts."""

_SHORTEST_LEASE = 0.5


class DemoError(QueuertError):
    """The demo could not be carried through; the message says which part failed, and how."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of a run.

    Attributes:
        url: a Postgres to use; None starts one.
        spark: whether Spark reads the files.
        files: at most so many; None for all.
        workers: worker processes at a time.
        concurrency: slots of each.
        lease: seconds that a job stays with a worker that gives no sign of life.
        report: where the report goes; None for a temporary file.
        keep: leave the database and the logs.

    Raises:
        UsageError: an option makes no sense.
    """

    url: str | None = None
    spark: bool = True
    files: int | None = None
    workers: int = 2
    concurrency: int = 8
    lease: float = 3.0
    report: Path | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        if self.lease < _SHORTEST_LEASE:
            raise UsageError(f"--lease {self.lease:g}: at least {_SHORTEST_LEASE:g} seconds, or live workers lose jobs")
        if self.report is not None and not self.report.parent.is_dir():
            raise UsageError(f"--report {self.report}: there is no directory {self.report.parent}")

    @property
    def slots(self) -> int:
        """Handlers that run at once, in all workers."""
        return self.workers * self.concurrency
