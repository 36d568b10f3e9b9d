"""``make bench``: ours, the raw ceiling and the peers in one interleaved run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report_html, report_text
from benchmarks.environments import CACHE, EnvironmentFailed, Environments
from benchmarks.goals import TARGETS
from benchmarks.machine import machine
from benchmarks.model import Contestant, Scenario, Store
from benchmarks.results import Run, as_json
from benchmarks.runner import Runner, Servers
from benchmarks.scenarios import SCENARIOS, chosen, names, scenarios
from benchmarks.scenarios_large import DEFAULT, FULL, QUICK
from benchmarks.servers import POSTGRES_SETTINGS, REDIS_OPTIONS, postgres, valkey
from benchmarks.targets import verdicts

JOBS, ROUNDS = 10_000, 3
QUICK_JOBS, QUICK_ROUNDS = 1_000, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, measure, report. The exit status is 1 when ours failed, or the ceiling; peers may."""
    options = _parse(arguments)
    measured = chosen(scenarios(options.sizes), options.only)
    if not measured:
        print("nothing to measure: none of these peers takes part in these scenarios", file=sys.stderr)
        return 2
    run = _measured(measured, options)
    found = verdicts(run.outcomes, TARGETS, judged=not options.quick)
    print(report_text.text(run, found))
    _write(Path(options.out), as_json(run, found), report_html.page(run, found))
    found_errors = [one for outcome in run.outcomes for one in outcome.series if one.error]
    return int(any(not one.entry.contestant.may_fail for one in found_errors))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=names(SCENARIOS),
                        help="a server (postgres, redis), a scenario or a peer; can be repeated: of the scenarios"
                        " that are named the peers that are, beside ours and the ceiling")  # fmt: skip
    parser.add_argument("--jobs", type=int, help=f"jobs of an entry whose share is 1 (default: {JOBS:,})")
    parser.add_argument("--rounds", type=int, help=f"times that everything is measured (default: {ROUNDS})")
    parser.add_argument("--out", default=str(CACHE / "report"), help="where results.json and report.html go")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true",
                        help="one round with few jobs, to see that all is well: no target is judged")  # fmt: skip
    extent.add_argument("--full", action="store_true",
                        help="backlogs and histories of ten million rows too: 40 GB of disk, an hour more")  # fmt: skip
    options = parser.parse_args(arguments)
    options.jobs = options.jobs or (QUICK_JOBS if options.quick else JOBS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.sizes = QUICK if options.quick else FULL if options.full else DEFAULT
    if options.jobs < 100 or options.rounds < 1:
        parser.error("--jobs is at least 100, --rounds at least 1")
    return options


def _measured(scenarios: Sequence[Scenario], options: argparse.Namespace) -> Run:
    environments = Environments()
    facts = machine()
    versions = _versions(scenarios, environments)
    stores = {scenario.store for scenario in scenarios}
    settings: dict[str, Any] = {"rounds": options.rounds, "jobs": options.jobs, **asdict(options.sizes)}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        servers = Servers()
        if Store.POSTGRES in stores:
            servers.postgres = stack.enter_context(postgres())
            versions["PostgreSQL"] = servers.postgres.version()
            settings["postgres"] = POSTGRES_SETTINGS
        if Store.REDIS in stores:
            servers.redis = stack.enter_context(valkey())
            versions["Redis server"] = servers.redis.version()
            settings["redis"] = REDIS_OPTIONS
        outcomes = Runner(servers, environments, jobs=options.jobs, tell=_tell).run(scenarios, options.rounds)
    settings["seconds"] = round(time.monotonic() - began)
    return Run(settings, facts, versions, outcomes)


def _versions(scenarios: Sequence[Scenario], environments: Environments) -> dict[str, str]:
    """Of every contestant; the environments that are missing are built by the way."""
    found: dict[str, str] = {}
    for one in _contestants(scenarios):
        assert one.package is not None
        _tell(f"environment of {one.name}")
        with contextlib.suppress(EnvironmentFailed):
            found[one.package] = environments.version(one)
    return found


def _contestants(scenarios: Sequence[Scenario]) -> list[Contestant]:
    return list(dict.fromkeys(entry.contestant for one in scenarios for entry in one.entries))


def _write(folder: Path, results: dict[str, Any], page: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page, encoding="utf-8")
    print(f"\nwritten: {folder / 'results.json'}, {folder / 'report.html'}")


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
