"""What traces cost starts and drains: `python -m benchmarks.tracing`.

Each round measures each variant, in an order that is rotated from round to round: without a tracing middleware, with
one whose spans the SDK does not sample, with one whose attempts `attempt_ratio` leaves out, and with one whose spans
are all sampled. `--old PYTHON` adds the version that is installed in another environment. Printed are medians a job,
and ratios to `off` within a round, with their quartiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from benchmarks.child import Request
from benchmarks.process import ask
from benchmarks.servers import PostgresServer, postgres

ACTIONS = ("start_single", "start_batches", "drain")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "off": {},
    "out": {"sampling": "out"},
    "ratio": {"sampling": "ratio"},
    "in": {"sampling": "in"},
    "old": {},
}
_MODULE = "benchmarks.contestants.ours"
_SHOWN = {"rate": "jobs/s", "cpu_us": "process us", "server_cpu_us": "server us", "wal_bytes": "WAL bytes"}
_TIMEOUT = 300.0

Figures = dict[str, float]


def measure(server: PostgresServer, action: str, variant: str, python: str, jobs: int) -> Figures:
    """One variant of one action, in a database of its own: numbers a job."""
    empty = server.template(f"empty of {python}", lambda dsn: _ask(python, "prepare", dsn, 0))
    template = empty
    if action == "drain":
        # Jobs as a client of the variant would have written them.
        options = _OPTIONS[variant]
        template = server.template(
            f"{jobs} of {variant}", lambda dsn: _ask(python, "start_batches", dsn, jobs, **options), empty
        )
    with server.copy(template) as dsn, server.observed(dsn, jobs) as reported:
        answer = _ask(python, action, dsn, jobs, concurrency=100, **_OPTIONS[variant])
    return {**answer, **reported}


def _ask(python: str, action: str, dsn: str, jobs: int, **options: str | int) -> Figures:
    return ask(python, _MODULE, Request(action, dsn, jobs, options), timeout=_TIMEOUT)


def run(action: str, jobs: int, rounds: int, old: str | None) -> list[dict[str, Figures]]:
    """The numbers of each variant, round by round; the first round, which warms the machine, is left out."""
    variants = tuple(name for name in _OPTIONS if name != "old" or old is not None)
    found = []
    with postgres() as server:
        for number in range(rounds + 1):
            turn = number % len(variants)
            row = {}
            for variant in variants[turn:] + variants[:turn]:
                python = old if variant == "old" and old is not None else sys.executable
                row[variant] = measure(server, action, variant, python, jobs)
            found.append(row)
            print(f"{action}: round {number} of {rounds}", file=sys.stderr, flush=True)
    return found[1:]


def report(action: str, found: Sequence[dict[str, Figures]]) -> str:
    """A table: medians, and ratios to `off`."""
    lines = [f"{action:<15}" + "".join(f"{name:>32}" for name in _SHOWN.values())]
    for variant in found[0]:
        cells = []
        for name in _SHOWN:
            ratios = [one[variant][name] / one["off"][name] for one in found]
            low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
            middle = median(one[variant][name] for one in found)
            cells.append(f"{middle:>12.0f} {median(ratios):>5.3f} ({low:.3f}-{high:.3f})".rjust(32))
        lines.append(f"{variant:<15}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=ACTIONS, action="append", help="one of these alone; can be repeated")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--old", metavar="PYTHON", help="the interpreter of another version's environment")
    args = parser.parse_args()
    for action in args.only or ACTIONS:
        jobs = max(1, args.jobs // 5) if action == "start_single" else args.jobs
        print(report(action, run(action, jobs, args.rounds, args.old)), flush=True)


if __name__ == "__main__":
    main()
