"""``make bench``: ours, the raw ceiling and the peers in one interleaved run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report_html, report_text
from benchmarks.environments import CACHE, EnvironmentFailed, Environments
from benchmarks.goals import TARGETS
from benchmarks.machine import machine
from benchmarks.model import Contestant, Kind, Scenario, Store
from benchmarks.results import Run, as_json
from benchmarks.runner import Runner, Servers
from benchmarks.scenarios import SCENARIOS, chosen, names
from benchmarks.servers import POSTGRES_SETTINGS, REDIS_OPTIONS, postgres, valkey
from benchmarks.targets import verdicts

QUICK_JOBS, QUICK_ROUNDS = 1_000, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, measure, report. The exit status is 1 when ours failed, or the ceiling; peers may."""
    options = _parse(arguments)
    scenarios = chosen(SCENARIOS, options.only)
    if not scenarios:
        print("nothing to measure: none of these peers takes part in these scenarios", file=sys.stderr)
        return 2
    run = _measured(scenarios, options)
    found = verdicts(run.outcomes, TARGETS)
    print(report_text.text(run, found))
    _write(Path(options.out), run, report_html.page(run, found))
    found_errors = [one for outcome in run.outcomes for one in outcome.series if one.error]
    return int(any(one.entry.contestant.kind is not Kind.PEER for one in found_errors))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=names(SCENARIOS),
                        help="a server (postgres, redis), a scenario or a peer; can be repeated")  # fmt: skip
    parser.add_argument("--jobs", type=int, help="jobs of an entry whose share is 1 (default: 10,000)")
    parser.add_argument("--rounds", type=int, help="times that everything is measured (default: 5)")
    parser.add_argument("--out", default=str(CACHE / "report"), help="where results.json and report.html go")
    parser.add_argument("--quick", action="store_true", help="one round with few jobs: to see that all is well")
    options = parser.parse_args(arguments)
    options.jobs = options.jobs or (QUICK_JOBS if options.quick else 10_000)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else 5)
    if options.jobs < 100 or options.rounds < 1:
        parser.error("--jobs is at least 100, --rounds at least 1")
    return options


def _measured(scenarios: Sequence[Scenario], options: argparse.Namespace) -> Run:
    environments = Environments()
    facts = machine()
    versions = _versions(scenarios, environments)
    stores = {scenario.store for scenario in scenarios}
    settings: dict[str, Any] = {"rounds": options.rounds, "jobs": options.jobs}
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


def _write(folder: Path, run: Run, page: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(as_json(run), indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page, encoding="utf-8")
    print(f"\nwritten: {folder / 'results.json'}, {folder / 'report.html'}")


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
