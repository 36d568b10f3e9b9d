"""The results as data: what goes into the JSON file, and what the page and the tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.arithmetic import Spread, rounded
from benchmarks.model import Outcome, Series
from benchmarks.targets import Verdict

FORMAT = 1

SECONDARY = {
    "p99_ms": "p99, ms",
    "cpu_us": "worker CPU, us/job",
    "server_cpu_us": "server CPU, us/job",
    "rss_mib": "memory, MiB",
    "wal_bytes": "WAL, bytes/job",
    "commits": "commits/job",
    "dead_rows": "dead rows/job",
    "hot_share": "HOT share",
    "commands": "commands/job",
    "offered_rate": "offered, jobs/s",
}
"""What is shown beside the number that counts."""


@dataclass(frozen=True)
class Run:
    """A run, with what has to be known to read its figures."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    outcomes: Sequence[Outcome]


def as_json(run: Run, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """The run as plain data, and what it says of the targets."""
    return {
        "format": FORMAT,
        "settings": run.settings,
        "machine": run.machine,
        "versions": run.versions,
        "targets": [{**asdict(one), "value": _spread(one.value)} for one in verdicts],
        "scenarios": [_scenario(outcome) for outcome in run.outcomes],
    }


def _scenario(outcome: Outcome) -> dict[str, Any]:
    scenario = outcome.scenario
    return {
        "name": scenario.name,
        "title": scenario.title,
        "store": scenario.store.value,
        "metric": scenario.metric,
        "unit": scenario.unit,
        "more_is_better": scenario.more_is_better,
        "note": scenario.note,
        "seconds": round(outcome.seconds),
        "results": [_series(outcome, one) for one in outcome.series],
    }


def _series(outcome: Outcome, series: Series) -> dict[str, Any]:
    names = dict.fromkeys(name for sample in series.samples.values() for name in sample)
    return {
        "contestant": series.entry.contestant.name,
        "label": series.entry.label,
        "settings": series.entry.settings,
        "jobs": series.jobs,
        "error": series.error,
        "ours_to_this": _spread(outcome.ratio(outcome.series[0], series)),
        **{name: _spread(series.spread(name)) for name in names},
        "rounds": [
            {"round": number + 1, **{name: rounded(value, 5) for name, value in sample.items()}}
            for number, sample in sorted(series.samples.items())
        ],
    }


def _spread(value: Spread | None) -> dict[str, float] | None:
    return None if value is None else {name: rounded(one, 5) for name, one in asdict(value).items()}
