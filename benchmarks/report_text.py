"""The results for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.arithmetic import Spread, shown
from benchmarks.model import Outcome, Series
from benchmarks.results import SECONDARY, Run
from benchmarks.targets import Verdict


def text(run: Run, verdicts: list[Verdict]) -> str:
    """Tables, one a scenario, and the targets."""
    return "\n".join(
        [*_head(run), *(line for one in run.outcomes for line in _table(one)), *_verdicts(verdicts), *_times(run)]
    )


def _head(run: Run) -> Iterator[str]:
    machine = run.machine
    yield ""
    yield (
        f"{machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']} {machine['architecture']},"
        f" Python {machine['python']}, a flush to the disk {machine['disk_flush_us']} us,"
        f" load at the start {machine['load_at_start']}"
    )
    yield ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield f"{run.settings['rounds']} rounds, interleaved; medians (least-greatest); ratios are of the same round"


def _table(outcome: Outcome) -> Iterator[str]:
    scenario, ours = outcome.scenario, outcome.series[0]
    columns = [name for name in SECONDARY if any(one.values(name) for one in outcome.series)]
    yield ""
    yield f"{scenario.title} ({scenario.unit}, {'more' if scenario.more_is_better else 'less'} is better)"
    titles = "".join(f"  {SECONDARY[name]}" for name in columns)
    yield f"  {'':40} {'median':>9} {'least-greatest':>19} {'ours is x times as good':>25}{titles}"
    for series in outcome.series:
        yield from _row(outcome, ours, series, columns)
    if scenario.note:
        yield f"  {scenario.note}"


def _row(outcome: Outcome, ours: Series, series: Series, columns: list[str]) -> Iterator[str]:
    value = series.spread(outcome.scenario.metric)
    label = f"  {series.entry.label:40}"
    if value is not None:
        ratio = "" if series is ours else ratio_text(outcome.ratio(ours, series))
        extra = "".join(f"  {_median(series.spread(name)):>{len(SECONDARY[name])}}" for name in columns)
        yield f"{label} {shown(value.median):>9} {_range(value):>19} {ratio:>25}{extra}"
    if series.error is not None:
        yield f"{label} FAILED: {series.error}"


def ratio_text(ratio: Spread | None) -> str:
    """A ratio with its spread."""
    return "" if ratio is None else f"{shown(ratio.median)} ({shown(ratio.low)}-{shown(ratio.high)})"


def _range(value: Spread) -> str:
    return f"{shown(value.low)}-{shown(value.high)}"


def _median(value: Spread | None) -> str:
    return "" if value is None else shown(value.median)


def _verdicts(verdicts: list[Verdict]) -> Iterator[str]:
    if verdicts:
        yield ""
        yield "Targets: the median has to keep the bound (least-greatest of the rounds)"
    width = max((len(verdict_word(one)) for one in verdicts), default=0)
    for one in verdicts:
        yield f"  {verdict_word(one):{width}} {verdict_value(one):>24}  ({one.bound})  {one.title}"


def verdict_word(one: Verdict) -> str:
    """Whether it was reached."""
    if one.value is None:
        return "not measured"
    return "quick: not judged" if one.reached is None else "reached" if one.reached else "not reached"


def verdict_value(one: Verdict) -> str:
    """What was measured, with its spread."""
    return "-" if one.value is None else ratio_text(one.value)


def _times(run: Run) -> Iterator[str]:
    """Where the time went: the longest first."""
    seconds = run.settings.get("seconds")
    if seconds is not None:
        longest = sorted(run.outcomes, key=lambda one: -one.seconds)
        parts = ", ".join(f"{one.scenario.name} {one.seconds:.0f}" for one in longest)
        yield ""
        yield f"The run took {seconds / 60:.1f} minutes; of its seconds: {parts}"
