"""Outcomes made by hand."""

from __future__ import annotations

from benchmarks.model import Contestant, Entry, Kind, Outcome, Scenario, Series, Store
from benchmarks.results import Run

MODULE = "tests.benchmarks.contestants"
OURS = Contestant("queuert", MODULE, Kind.OURS, package="queuert")
BARE = Contestant("bare", MODULE, Kind.BARE, package="psycopg")
PEER = Contestant("rival", MODULE, Kind.PEER, "rival", "rival")


def outcome(*series: Series, name: str = "drain", more_is_better: bool = True, metric: str = "rate") -> Outcome:
    """A scenario with these results."""
    entries = tuple(one.entry for one in series)
    scenario = Scenario(
        name, f"The {name}", Store.POSTGRES, "drain", entries, metric=metric, more_is_better=more_is_better
    )
    return Outcome(scenario, list(series))


def series(
    contestant: Contestant,
    *rates: float,
    label: str | None = None,
    error: str | None = None,
    options: dict[str, int] | None = None,
) -> Series:
    """What a contestant achieved, a rate a round."""
    entry = Entry(contestant, label or contestant.name, f"{contestant.name} as it is", options or {})
    samples = {number: {"rate": rate, "cpu_us": 1e6 / rate} for number, rate in enumerate(rates)}
    return Series(entry, 100, samples, error)


def run_of(*outcomes: Outcome) -> Run:
    """A run of two rounds with these results."""
    machine = {
        "cores": 2,
        "memory_gib": 8.0,
        "system": "Linux",
        "architecture": "x86_64",
        "python": "3.11.7",
        "load_at_start": 0.1,
        "disk_flush_us": 100,
    }
    return Run({"rounds": 2, "jobs": 100}, machine, {"queuert": "0.1.0"}, outcomes)
