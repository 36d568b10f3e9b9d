"""What the event log costs a drain: `python -m benchmarks.event_levels`.

Each round drains the same jobs at each level of the log, in an order that is rotated from round to round. Printed are
medians a job, and ratios to `off` within a round, with their extremes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median

import psycopg

from benchmarks.child import Request
from benchmarks.process import ask
from benchmarks.servers import PostgresServer, postgres

LEVELS = ("off", "terminal", "all")
_MODULE = "benchmarks.contestants.ours"
_SHOWN = {"rate": "jobs/s", "server_cpu_us": "server us", "cpu_us": "worker us", "wal_bytes": "WAL bytes"}
_TIMEOUT = 300.0


def measure(server: PostgresServer, level: str, jobs: int, concurrency: int) -> dict[str, float]:
    """One drain at one level, in a database of its own: numbers a job."""
    empty = server.template("empty", lambda dsn: _ask("prepare", dsn, 0))
    loaded = server.template(f"{jobs} jobs", lambda dsn: _ask("load", dsn, jobs), empty)
    with server.copy(loaded) as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE queuert.event_log SET level = %s", [level])
        with server.observed(dsn, jobs) as reported:
            answer = _ask("drain", dsn, jobs, concurrency=concurrency)
    return {**answer, **reported}


def _ask(action: str, dsn: str, jobs: int, **options: int) -> dict[str, float]:
    return ask(sys.executable, _MODULE, Request(action, dsn, jobs, options), timeout=_TIMEOUT)


def run(jobs: int, rounds: int, concurrency: int) -> list[dict[str, dict[str, float]]]:
    """The numbers of each level, round by round; the first round, which warms the machine, is left out."""
    found = []
    with postgres() as server:
        for number in range(rounds + 1):
            turn = number % len(LEVELS)
            order = LEVELS[turn:] + LEVELS[:turn]
            found.append({level: measure(server, level, jobs, concurrency) for level in order})
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return found[1:]


def report(found: Sequence[dict[str, dict[str, float]]]) -> str:
    """A table: medians, and ratios to `off`."""
    lines = [f"{'level':<10}" + "".join(f"{name:>32}" for name in _SHOWN.values())]
    for level in LEVELS:
        cells = []
        for name in _SHOWN:
            ratios = [one[level][name] / one["off"][name] for one in found]
            middle = median(one[level][name] for one in found)
            cells.append(f"{middle:>12.0f} {median(ratios):>5.3f} ({min(ratios):.3f}-{max(ratios):.3f})".rjust(32))
        lines.append(f"{level:<10}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=100)
    args = parser.parse_args()
    print(report(run(args.jobs, args.rounds, args.concurrency)))


if __name__ == "__main__":
    main()
