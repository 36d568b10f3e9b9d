"""The targets, each a ratio or a figure computed from the results, and a bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.arithmetic import Spread, paired_ratios, spread
from benchmarks.model import Kind, Outcome, Series

Outcomes: TypeAlias = Mapping[str, Outcome]
Chosen: TypeAlias = Callable[[Series], bool]


@dataclass(frozen=True)
class Measure:
    """How a number is computed, and from which scenarios."""

    scenarios: Collection[str]
    compute: Callable[[Outcomes], Spread | None]


@dataclass(frozen=True)
class Verdict:
    """A target, and what was measured of it: None when whoever it is compared with failed."""

    title: str
    value: Spread | None
    bound: str
    reached: bool | None
    """None where the run was too small to be judged."""


@dataclass(frozen=True)
class Target:
    """A ratio or a figure with a bound, which its median has to keep. Peers that failed are not counted."""

    title: str
    measure: Measure
    least: float | None = None
    most: float | None = None

    def verdict(self, outcomes: Outcomes) -> Verdict | None:
        """What the results say; None when the run was not to measure it."""
        if not set(self.measure.scenarios) <= outcomes.keys():
            return None
        value = self.measure.compute(outcomes)
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return Verdict(self.title, value, bound, value is not None and self._keeps(value.median))

    def _keeps(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def verdicts(outcomes: Sequence[Outcome], targets: Sequence[Target], *, judged: bool = True) -> list[Verdict]:
    """The verdicts on all targets of which the run measured the scenarios; of a quick one the figures alone."""
    by_name = {outcome.scenario.name: outcome for outcome in outcomes}
    found = [one for one in (target.verdict(by_name) for target in targets) if one is not None]
    return found if judged else [replace(one, reached=None) for one in found]


def to(scenario: str, contestant: str, ours: str | None = None) -> Measure:
    """Ours to the best entry of one contestant: how many times as good it is."""
    return _ratio(scenario, lambda series: series.entry.contestant.name == contestant, ours)


def to_label(scenario: str, label: str, ours: str | None = None) -> Measure:
    """Ours to one entry: how many times as good it is."""
    return _ratio(scenario, lambda series: series.entry.label == label, ours)


def to_best_peer(scenario: str, ours: str | None = None, metric: str | None = None) -> Measure:
    """Ours to the best of all peers; of another number than the scenario's own, less of which is better."""
    return _ratio(scenario, _is_peer, ours, metric)


def to_sparest_peer(scenario: str, metric: str, ours: str | None = None, without: Collection[str] = ()) -> Measure:
    """Ours to the peer with the least of a number: how many times theirs is ours."""
    return _ratio(
        scenario, lambda series: _is_peer(series) and series.entry.contestant.name not in without, ours, metric
    )


def figure(scenario: str, metric: str, ours: str | None = None) -> Measure:
    """One number of ours."""

    def compute(outcomes: Outcomes) -> Spread | None:
        series = _ours(outcomes[scenario], ours)
        return None if series is None else series.spread(metric)

    return Measure((scenario,), compute)


def across(one: tuple[str, str], other: tuple[str, str], metric: str = "rate") -> Measure:
    """A number of one scenario's entry to that of another's, round by round; each is a scenario and a label."""
    return between(_labelled(*one), _labelled(*other), metric)


@dataclass(frozen=True)
class Place:
    """An entry of a scenario, named by its options: the first that fits, of the ``greatest`` of one option."""

    scenario: str
    options: Mapping[str, object]
    snapshot: bool = False
    greatest: str | None = None
    label: str | None = None

    def find(self, outcomes: Outcomes) -> Series | None:
        """The series of it."""
        fitting = [one for one in outcomes[self.scenario].series if self._fits(one)]
        name = self.greatest
        if name is not None:
            fitting.sort(key=lambda one: -float(one.entry.options.get(name, 0)))
        return fitting[0] if fitting else None

    def _fits(self, series: Series) -> bool:
        entry = series.entry
        if self.label is not None:
            return entry.label == self.label
        same = all(entry.options.get(name) == value for name, value in self.options.items())
        return entry.contestant.kind is Kind.OURS and entry.snapshot == self.snapshot and same


def between(one: Place, other: Place, metric: str) -> Measure:
    """A number of one entry to that of another, round by round."""

    def compute(outcomes: Outcomes) -> Spread | None:
        this, that = one.find(outcomes), other.find(outcomes)
        if this is None or that is None:
            return None
        return spread(paired_ratios(this.values(metric), that.values(metric)))

    return Measure(tuple({one.scenario, other.scenario}), compute)


def _labelled(scenario: str, label: str) -> Place:
    return Place(scenario, {}, label=label)


def _is_peer(series: Series) -> bool:
    return series.entry.contestant.kind is Kind.PEER


def _ratio(scenario: str, counts: Chosen, ours: str | None, metric: str | None = None) -> Measure:
    """Against the one that comes closest; of a number other than the scenario's, less is better."""

    def compute(outcomes: Outcomes) -> Spread | None:
        outcome = outcomes[scenario]
        mine = _ours(outcome, ours)
        if mine is None:
            return None
        found = [_compared(outcome, mine, series, metric) for series in outcome.series if counts(series)]
        return min((one for one in found if one is not None), key=lambda one: one.median, default=None)

    return Measure((scenario,), compute)


def _compared(outcome: Outcome, mine: Series, theirs: Series, metric: str | None) -> Spread | None:
    if metric is None:
        return outcome.ratio(mine, theirs)
    return spread(paired_ratios(theirs.values(metric), mine.values(metric)))


def _ours(outcome: Outcome, label: str | None) -> Series | None:
    """The first entry of ours, or the one of this label."""
    mine = (one for one in outcome.series if one.entry.contestant.kind is Kind.OURS)
    return next((one for one in mine if label is None or one.entry.label == label), None)
