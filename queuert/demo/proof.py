"""What happened, and the proof, computed by the database from what is in its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString

from queuert.demo.database import Database

_FIGURES: Final = """
SELECT
    (SELECT reader FROM queuert_demo.plan),
    (SELECT files FROM queuert_demo.plan),
    count(*) FILTER (WHERE chain_index = 0),
    count(*) FILTER (WHERE chain_status = 'completed'),
    count(*),
    sum(attempt),
    sum(lease_expirations),
    extract(epoch FROM max(finished_at) - min(created_at))::float8,
    extract(epoch FROM max(scheduled_at) FILTER (WHERE lease_expirations > 0) - %s::timestamptz)::float8,
    extract(epoch FROM max(started_at) FILTER (WHERE lease_expirations > 0) - %s::timestamptz)::float8
FROM queuert_demo.job
"""

# Each is a question whose answer must be 0. A job that ended a chain must have left exactly one effect; the others,
# which were continued, none.
_CHECKS: Final[tuple[tuple[str, LiteralString], ...]] = (
    (
        "chains started, but not completed",
        "SELECT count(*) FROM queuert_demo.job WHERE chain_index = 0 AND chain_status <> 'completed'",
    ),
    (
        "files without exactly one completed chain",
        """
        SELECT abs((SELECT sum(files) FROM queuert_demo.plan)
                 - (SELECT count(*) FROM queuert_demo.job WHERE type = 'measure' AND chain_status = 'completed'))
             + (SELECT count(*) - count(DISTINCT path) FROM queuert_demo.source_file)
        """,
    ),
    (
        "effects committed twice",
        """
        SELECT (SELECT count(*) - count(DISTINCT job_id) FROM queuert_demo.effect)
             + (SELECT count(*) - count(DISTINCT chain_id) FROM queuert_demo.effect)
             + (SELECT count(*) - count(DISTINCT chain_id) FROM queuert_demo.source_file)
        """,
    ),
    (
        "effects missing",
        """
        SELECT count(*) FROM queuert_demo.job
        WHERE status = 'completed' AND id NOT IN (SELECT job_id FROM queuert_demo.effect)
        """,
    ),
    (
        "effects of jobs that are not completed",
        """
        SELECT count(*) FROM queuert_demo.effect
        WHERE job_id NOT IN (SELECT id FROM queuert_demo.job WHERE status = 'completed')
        """,
    ),
    (
        "answers that Spark got, but the workers did not write",
        """
        SELECT coalesce(sum(abs(answers.chains - found.files) + abs(answers.lines - found.lines)
                            + abs(answers.symbols - found.symbols)), 0)
        FROM queuert_demo.answers
        CROSS JOIN (SELECT count(*) AS files, coalesce(sum(lines), 0) AS lines,
                        (SELECT count(*) FROM queuert_demo.symbol) AS symbols
                    FROM queuert_demo.source_file) AS found
        """,
    ),
    ("jobs left running", "SELECT count(*) FROM queuert_demo.job WHERE status = 'running'"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a run; times in seconds, by the database's clock."""

    reader: str
    files: int
    chains_started: int
    chains_completed: int
    jobs: int
    attempts: int
    attempts_lost: int
    seconds: float
    released_after: float | None
    taken_over_after: float | None

    @property
    def rate(self) -> float:
        """Jobs a second, waiting for the dead worker's leases included."""
        return self.jobs / self.seconds if self.seconds else 0.0

    def lines(self) -> list[tuple[str, str]]:
        """What to show."""
        return [
            ("files", f"{self.files:,}  (read by {self.reader})"),
            ("chains started", f"{self.chains_started:,}  (one a file, and the report)"),
            ("chains completed", f"{self.chains_completed:,}"),
            ("jobs", f"{self.jobs:,}"),
            ("attempts", f"{self.attempts:,}"),
            ("attempts repeated after the kill", f"{self.attempts_lost:,}"),
            ("seconds, first job to last", f"{self.seconds:.1f}"),
            ("jobs a second", f"{self.rate:.0f}"),
            ("seconds from the kill until its jobs were ready again", _seconds(self.released_after)),
            ("seconds from the kill until all of them were taken over", _seconds(self.taken_over_after)),
        ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Check:
    """A question to the tables, and how many rows speak against us."""

    what: str
    found: int

    @property
    def holds(self) -> bool:
        """Whether there are none."""
        return self.found == 0


def read_figures(database: Database, killed_at: datetime | None) -> Figures:
    """Compute the numbers."""
    row = database.row(_FIGURES, (killed_at, killed_at))
    values: list[Any] = [*(value or 0 for value in row[:-2]), *row[-2:]]
    return Figures(*values)


def run_checks(database: Database) -> list[Check]:
    """Ask the questions."""
    return [Check(what, int(database.row(query)[0] or 0)) for what, query in _CHECKS]


def table(lines: Sequence[tuple[str, str]]) -> str:
    """Names and values, one below the other."""
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in lines)


def verdict(checks: Sequence[Check]) -> str:
    """The proof, as text, with a plain last line."""
    shown = table([(check.what, f"{check.found}  {'ok' if check.holds else 'WRONG'}") for check in checks])
    holds = all(check.holds for check in checks)
    last = "The proof holds: nothing was lost, nothing was committed twice." if holds else "THE PROOF DOES NOT HOLD."
    return f"{shown}\n\n{last}"
