"""``make bench``: each scenario and its ceiling in turn, several rounds, medians and their ratio.

Machines are noisy: compare within one run. Durability is on (fsync, synchronous_commit), as in production.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import ceiling, ours
from queuert import migrations
from queuert.embedded import EmbeddedPostgres
from queuert.testing.databases import TemplateDatabases


@dataclass(frozen=True)
class Scenario:
    """What is measured, and against what. Each function is given a fresh database and returns a rate a second."""

    name: str
    ours: Callable[[str], float]
    ceiling: Callable[[str], float]


def scenarios(count: int) -> list[Scenario]:
    """All scenarios, with ``count`` jobs in the long ones."""

    def drained(concurrency: int) -> Callable[[str], float]:
        def measure(dsn: str) -> float:
            ours.start(dsn, count, 1000)
            return ours.drain(dsn, count, concurrency)

        return measure

    def bare_drain(dsn: str) -> float:
        ours.start(dsn, count, 1000)
        return ceiling.drain(dsn, count, 100)

    return [
        Scenario("start_chain, single", lambda dsn: ours.start(dsn, 500, 1), lambda dsn: ceiling.insert(dsn, 500, 1)),
        Scenario(
            "start_chains of 1,000",
            lambda dsn: ours.start(dsn, count, 1000),
            lambda dsn: ceiling.insert(dsn, count, 1000),
        ),
        Scenario("drain, concurrency 1", drained(1), bare_drain),
        Scenario("drain, concurrency 10", drained(10), bare_drain),
        Scenario("drain, concurrency 100", drained(100), bare_drain),
    ]


def main() -> int:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs in each long scenario, a multiple of 1,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that each pair is measured")
    options = parser.parse_args()
    if options.jobs < 1000 or options.jobs % 1000 or options.rounds < 1:
        parser.error("--jobs is a multiple of 1,000, --rounds at least 1")
    print(f"{'scenario':28} {'ours/s':>10} {'ceiling/s':>10} {'ratio':>7}")
    with EmbeddedPostgres(durable=True) as server:
        databases = TemplateDatabases(server.dsn(), migrations.upgrade)
        for scenario in scenarios(options.jobs):
            rates = [_pair(databases, scenario) for _ in range(options.rounds)]
            mine, bare = (statistics.median(column) for column in zip(*rates, strict=True))
            print(f"{scenario.name:28} {mine:10,.0f} {bare:10,.0f} {mine / bare:7.2f}", flush=True)
        databases.close()
    return 0


def _pair(databases: TemplateDatabases, scenario: Scenario) -> tuple[float, float]:
    with databases.database() as one:
        mine = scenario.ours(one)
    with databases.database() as other:
        return mine, scenario.ceiling(other)


if __name__ == "__main__":
    sys.exit(main())
