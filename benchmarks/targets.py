"""The targets, each a number computed from the results and a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.model import Kind, Outcome, Series


@dataclass(frozen=True)
class Verdict:
    """A target, and what was measured of it."""

    title: str
    value: float
    bound: str
    reached: bool


@dataclass(frozen=True)
class Target:
    """A ratio or a figure with a bound. Peers that failed are not counted; without any figures there is no verdict."""

    title: str
    compute: Callable[[dict[str, Outcome]], float | None]
    least: float | None = None
    most: float | None = None

    def verdict(self, outcomes: dict[str, Outcome]) -> Verdict | None:
        """What the results say."""
        value = self.compute(outcomes)
        if value is None:
            return None
        if self.least is not None:
            return Verdict(self.title, value, f">= {self.least:g}", value >= self.least)
        assert self.most is not None
        return Verdict(self.title, value, f"<= {self.most:g}", value <= self.most)


def verdicts(outcomes: Sequence[Outcome], targets: Sequence[Target]) -> list[Verdict]:
    """The verdicts on all targets of which something was measured."""
    by_name = {outcome.scenario.name: outcome for outcome in outcomes}
    found = (target.verdict(by_name) for target in targets)
    return [one for one in found if one is not None]


def to(scenario: str, contestant: str, ours: str | None = None) -> Callable[[dict[str, Outcome]], float | None]:
    """Ours to the best entry of one contestant: how many times as good it is."""
    return _ratios(scenario, lambda series: series.entry.contestant.name == contestant, ours)


def to_label(scenario: str, label: str, ours: str | None = None) -> Callable[[dict[str, Outcome]], float | None]:
    """Ours to one entry: how many times as good it is."""
    return _ratios(scenario, lambda series: series.entry.label == label, ours)


def to_best_peer(scenario: str, ours: str | None = None) -> Callable[[dict[str, Outcome]], float | None]:
    """Ours to the best of all peers."""
    return _ratios(scenario, lambda series: series.entry.contestant.kind is Kind.PEER, ours)


def figure(scenario: str, metric: str, ours: str | None = None) -> Callable[[dict[str, Outcome]], float | None]:
    """One number of ours."""

    def compute(outcomes: dict[str, Outcome]) -> float | None:
        series = _ours(outcomes.get(scenario), ours)
        value = None if series is None else series.spread(metric)
        return None if value is None else value.median

    return compute


def across(
    one: tuple[str, str], other: tuple[str, str], metric: str = "rate"
) -> Callable[[dict[str, Outcome]], float | None]:
    """A number of one scenario's entry to that of another's; each is a scenario and a label."""

    def compute(outcomes: dict[str, Outcome]) -> float | None:
        values = [figure(scenario, metric, label)(outcomes) for scenario, label in (one, other)]
        return None if values[0] is None or not values[1] else values[0] / values[1]

    return compute


def _ratios(
    scenario: str, counts: Callable[[Series], bool], ours: str | None
) -> Callable[[dict[str, Outcome]], float | None]:
    def compute(outcomes: dict[str, Outcome]) -> float | None:
        outcome = outcomes.get(scenario)
        mine = _ours(outcome, ours)
        if outcome is None or mine is None:
            return None
        found = [outcome.ratio(mine, series) for series in outcome.series if counts(series)]
        return min((one.median for one in found if one is not None), default=None)

    return compute


def _ours(outcome: Outcome | None, label: str | None) -> Series | None:
    if outcome is None:
        return None
    return outcome.series[0] if label is None else outcome.find(label)
