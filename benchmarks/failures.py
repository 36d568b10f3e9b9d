"""What the failures in a job's row cost: `python -m benchmarks.failures --old PYTHON`.

Each round measures this version and the one that is installed in another environment, in turn: single starts, a drain,
and drains in which each job fails some times before it completes. Printed are medians a job, and the ratios of this
version to the other one within a round, with their quartiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from benchmarks.child import Request
from benchmarks.process import ask
from benchmarks.servers import PostgresServer, postgres

ACTIONS: Mapping[str, Mapping[str, int]] = {
    "start_single": {},
    "drain": {},
    "fail once": {"failures": 1},
    "fail 24 times": {"failures": 24},
}
_MODULE = "benchmarks.contestants.ours"
_SHOWN = {"rate": "jobs/s", "cpu_us": "process us", "server_cpu_us": "server us", "wal_bytes": "WAL bytes"}
_TIMEOUT = 600.0

Figures = dict[str, float]


def measure(server: PostgresServer, action: str, python: str, jobs: int) -> Figures:
    """One action of one version, in a database of its own: numbers a job."""
    template = server.template(f"empty of {python}", lambda dsn: _ask(python, "prepare", dsn, 0))
    if action != "start_single":
        template = server.template(f"{jobs} of {python}", lambda dsn: _ask(python, "load", dsn, jobs), template)
    with server.copy(template) as dsn, server.observed(dsn, jobs) as reported:
        name = action if action == "start_single" else "drain"
        answer = _ask(python, name, dsn, jobs, concurrency=100, **ACTIONS[action])
    return {**answer, **reported}


def _ask(python: str, action: str, dsn: str, jobs: int, **options: int) -> Figures:
    return ask(python, _MODULE, Request(action, dsn, jobs, options), timeout=_TIMEOUT)


def run(action: str, jobs: int, rounds: int, old: str) -> list[tuple[Figures, Figures]]:
    """The numbers of both versions, round by round; the first round, which warms the machine, is left out."""
    found = []
    with postgres() as server:
        for number in range(rounds + 1):
            if number % 2:
                before = measure(server, action, old, jobs)
                found.append((measure(server, action, sys.executable, jobs), before))
            else:
                found.append((measure(server, action, sys.executable, jobs), measure(server, action, old, jobs)))
            print(f"{action}: round {number} of {rounds}", file=sys.stderr, flush=True)
    return found[1:]


def report(action: str, found: Sequence[tuple[Figures, Figures]]) -> str:
    """Two lines: medians of both versions, and the ratios."""
    lines = [f"{action:<15}" + "".join(f"{name:>34}" for name in _SHOWN.values())]
    for at, version in enumerate(("this", "old")):
        lines.append(
            f"{version:<15}" + "".join(f"{median(pair[at][name] for pair in found):>34.1f}" for name in _SHOWN)
        )
    ratios = [[new[name] / old[name] for new, old in found] for name in _SHOWN]
    spreads = [quantiles(one, n=4) if len(one) > 1 else one * 3 for one in ratios]
    lines.append(f"{'ratio':<15}" + "".join(f"{f'{m:.3f} ({low:.3f}-{high:.3f})':>34}" for low, m, high in spreads))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=ACTIONS, action="append", help="one of these alone; can be repeated")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--old", metavar="PYTHON", required=True, help="the interpreter of another version's environment"
    )
    args = parser.parse_args()
    for action in args.only or ACTIONS:
        jobs = args.jobs if action in ("drain", "fail once") else max(1, args.jobs // 5)
        print(report(action, run(action, jobs, args.rounds, args.old)), flush=True)


if __name__ == "__main__":
    main()
