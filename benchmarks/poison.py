"""What a flood of poisonous jobs costs the others: `python -m benchmarks.poison`.

Each round drains the same good jobs alone, beside jobs that raise at once, and beside jobs that kill the process of
their handler, in an order that is rotated from round to round. The flood was there first. It has a type of its own with
a limit of concurrency, and is tried again as the defaults say. Printed are medians, and ratios to `alone` within a
round, with their extremes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.child import Request
from benchmarks.process import ask
from benchmarks.servers import PostgresServer, postgres

ALONE = "alone"
FLOODS: Mapping[str, Mapping[str, object]] = {
    "raise": {"flood": "raise"},
    "kill": {"flood": "kill"},
    "paced": {"flood": "kill", "pause": 5.0},
}
"""The last is the second, with a rate of one attempt in so many seconds."""
_MODULE = "benchmarks.contestants.ours_poisoned"
_SHOWN = {
    "seconds": "seconds",
    "failed": "failed attempts",
    "cpu_us": "worker us/job",
    "server_cpu_us": "server us/job",
}
_TIMEOUT = 600.0

Numbers = Mapping[str, float]


def measure(server: PostgresServer, flood: str, jobs: int, options: Numbers) -> Numbers:
    """One drain of the good jobs, in a database of its own."""
    given = {**options, **FLOODS.get(flood, {})}
    empty = server.template("empty", lambda dsn: _ask("prepare", dsn, 0, given))
    loaded = server.template(flood, lambda dsn: _ask("load", dsn, jobs, given), empty)
    with server.copy(loaded) as dsn:
        with server.observed(dsn, jobs) as reported:
            answer = _ask("drain", dsn, jobs, given)
        return {**answer, **reported}


def _ask(action: str, dsn: str, jobs: int, options: Mapping[str, object]) -> Numbers:
    return ask(sys.executable, _MODULE, Request(action, dsn, jobs, options), timeout=_TIMEOUT)


def run(floods: Sequence[str], jobs: int, rounds: int, options: Numbers) -> list[dict[str, Numbers]]:
    """The numbers of each flood, round by round; the first round, which warms the machine, is left out."""
    found, each = [], (ALONE, *floods)
    with postgres() as server:
        for number in range(rounds + 1):
            turn = number % len(each)
            found.append({flood: measure(server, flood, jobs, options) for flood in each[turn:] + each[:turn]})
            shown = ", ".join(f"{flood} {found[-1][flood]['rate']:.0f}" for flood in each)
            print(f"round {number} of {rounds}: {shown} good jobs/s", file=sys.stderr, flush=True)
    return found[1:]


def report(found: Sequence[Mapping[str, Numbers]]) -> str:
    """A table: medians, and ratios to `alone`."""
    lines = [f"{'flood':<8}{'good jobs/s':>14}{'to alone':>24}" + "".join(f"{name:>18}" for name in _SHOWN.values())]
    for flood in sorted(found[0], key=(ALONE, *FLOODS).index):
        ratios = [one[flood]["rate"] / one[ALONE]["rate"] for one in found]
        spread = f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        rate, *others = (median(one[flood][name] for one in found) for name in ("rate", *_SHOWN))
        lines.append(f"{flood:<8}{rate:>14.0f}{spread:>24}" + "".join(f"{number:>18.1f}" for number in others))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--floods", nargs="+", choices=FLOODS, default=tuple(FLOODS))
    parser.add_argument("--jobs", type=int, default=100_000, help="good jobs")
    parser.add_argument("--poison", type=int, default=1_000, help="jobs of the flood")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=100, help="of the worker")
    parser.add_argument("--limit", type=int, default=10, help="of the type that raises: how many run at once (0: any)")
    parser.add_argument("--children", type=int, default=1, help="the same, of the type that kills")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds that a good job waits for something")
    args = vars(parser.parse_args())
    print(report(run(args.pop("floods"), args.pop("jobs"), args.pop("rounds"), args)))


if __name__ == "__main__":
    main()
