"""The rounds: each measures Queuert and bare SQL, alternating which comes first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from queuert.errors import ConfigurationError
from queuert.testing.bench.bare import Bare, connected
from queuert.testing.bench.ours import Ours
from queuert.testing.bench.report import BenchReport, Row
from queuert.testing.bench.scratch import Scratch, scratch

LEAST_JOBS = 10


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What to measure.

    Attributes:
        jobs: the jobs of a batch and of a drain; a tenth of them is started one by one, and a hundredth is timed from
            start to handler. At least 10.
        rounds: how often everything is measured. At least 1.
        concurrency: how many handlers of our worker run at once. At least 1.

    Raises:
        ConfigurationError: one of them is too small.
    """

    jobs: int = 5_000
    rounds: int = 3
    concurrency: int = 100

    def __post_init__(self) -> None:
        least = {"jobs": LEAST_JOBS, "rounds": 1, "concurrency": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ConfigurationError(f"{name} must be {value} or more, got {getattr(self, name)}")


def run(dsn: str, settings: BenchSettings, tell: Callable[[str], object] = lambda line: None) -> BenchReport:
    """Measure on this Postgres, in a schema that is dropped at the end.

    Args:
        dsn: libpq connection string or URI, of a role that may create schemas; to Postgres itself, not to a pooler.
        settings: how much to measure.
        tell: receives each line of progress.

    Raises:
        StateUnavailableError: the database cannot be reached.
        MigrationError: the schema cannot be created.
        StateError: the schema cannot be dropped; the message names it.
    """
    with scratch(dsn) as tables:
        measuring = _Measuring(tables, settings)
        for number in range(settings.rounds):
            for row in measuring.rows:
                tell(f"round {number + 1}/{settings.rounds}: {row.title}")
                measuring.measure(row, number)
        return BenchReport(tables.server, asdict(settings), tables.server_settings(), measuring.rows)


class _Measuring:
    def __init__(self, tables: Scratch, settings: BenchSettings) -> None:
        self._tables = tables
        self._jobs = settings.jobs
        self._ours = Ours(tables, concurrency=settings.concurrency)
        self.rows = [
            Row("start_single", "start one", "jobs/s"),
            Row("start_batches", "start 1,000 a call", "jobs/s"),
            Row("drain", "drain", "jobs/s"),
            Row("latency", "start to handler", "ms", more_is_better=False),
        ]

    def measure(self, row: Row, number: int) -> None:
        """Measure one round of one row."""
        parties: list[tuple[list[float], Callable[[], float]]] = [
            (row.ours, getattr(self, f"_ours_{row.name}")),
            (row.bare, getattr(self, f"_bare_{row.name}")),
        ]
        for values, work in parties if number % 2 == 0 else reversed(parties):
            self._tables.empty()
            values.append(work())

    @property
    def _few(self) -> int:
        return max(1, self._jobs // 10)

    @property
    def _fewest(self) -> int:
        return max(1, self._jobs // 100)

    def _ours_start_single(self) -> float:
        return self._few / self._ours.start_single(self._few)

    def _ours_start_batches(self) -> float:
        return self._jobs / self._ours.start_batches(self._jobs)

    def _ours_drain(self) -> float:
        self._ours.start_batches(self._jobs)
        self._tables.analyze()
        return self._jobs / self._ours.drain(self._jobs)

    def _ours_latency(self) -> float:
        return statistics.median(self._ours.latencies(self._fewest)) * 1e3

    def _bare_start_single(self) -> float:
        return self._bare(self._few, Bare.start_single)

    def _bare_start_batches(self) -> float:
        return self._bare(self._jobs, Bare.start_batches)

    def _bare_drain(self) -> float:
        self._bare(self._jobs, Bare.start_batches)
        self._tables.analyze()
        return self._bare(self._jobs, Bare.drain)

    def _bare_latency(self) -> float:
        with connected(self._tables) as connection:
            return statistics.median(Bare(self._tables, connection).latencies(self._fewest, self._tables)) * 1e3

    def _bare(self, jobs: int, work: Callable[[Bare, int], None]) -> float:
        """Return the jobs a second of the bare statement."""
        with connected(self._tables) as connection:
            bare = Bare(self._tables, connection)
            began = time.perf_counter()
            work(bare, jobs)
            return jobs / (time.perf_counter() - began)
