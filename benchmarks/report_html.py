"""The results as one page that needs nothing else: styles and charts are in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from benchmarks.arithmetic import Spread, shown
from benchmarks.charts import Bar, bars
from benchmarks.model import Outcome, Series
from benchmarks.report_text import ratio_text, verdict_value, verdict_word
from benchmarks.results import SECONDARY, Run
from benchmarks.targets import Verdict
from queuert.page_style import page_style

_STYLE = """
:root { --ours: var(--running); --bare: var(--cancelled); --peer: var(--blocked); }
td.failed { color: var(--bad); } .reached { color: var(--good); } .missed { color: var(--bad); }
svg text { font-size: 13px; fill: var(--ink); dominant-baseline: middle; }
svg .label { text-anchor: end; } svg .failed { fill: var(--bad); } svg .whisker { stroke: var(--ink); fill: none; }
svg .ours { fill: var(--ours); } svg .bare { fill: var(--bare); } svg .peer { fill: var(--peer); }
"""


def page(run: Run, verdicts: list[Verdict]) -> str:
    """The page."""
    parts = [
        '<!doctype html><html lang="en" data-theme="auto"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Queuert benchmarks</title><style>{page_style()}{_STYLE}</style></head><body>",
        *_head(run),
        *_targets(verdicts),
        *(line for outcome in run.outcomes for line in _section(outcome)),
        *_facts(run),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(run: Run) -> Iterator[str]:
    machine = run.machine
    yield "<h1>Queuert benchmarks</h1>"
    yield (
        f"<p>One run of {run.settings['rounds']} rounds, the contestants in turn, on {machine['cores']} cores and"
        f" {machine['memory_gib']:g} GiB, client and server on one machine. Bars are medians, whiskers the least and"
        " the greatest. Ratios are taken within a round. Compare within one run: machines differ, and so do hours.</p>"
    )


def _targets(verdicts: list[Verdict]) -> Iterator[str]:
    if not verdicts:
        return
    yield "<h2>Targets</h2><table><tr><th>target</th><th>bound</th><th>measured</th><th></th></tr>"
    for one in verdicts:
        kind = "" if one.reached is None else "reached" if one.reached else "missed"
        cells = f'<td class="words">{escape(one.title)}</td><td>{escape(one.bound)}</td><td>{verdict_value(one)}</td>'
        yield f'<tr>{cells}<td class="{kind}">{verdict_word(one)}</td></tr>'
    yield "</table>"


def _section(outcome: Outcome) -> Iterator[str]:
    scenario = outcome.scenario
    yield f'<h2 id="{escape(scenario.name)}">{escape(scenario.title)}</h2>'
    better = "more is better" if scenario.more_is_better else "less is better"
    yield f"<figure>{bars([_bar(outcome, one) for one in outcome.series], scenario.title)}"
    yield f"<figcaption>{escape(scenario.unit)}, {better}. {escape(scenario.note)}</figcaption></figure>"
    yield from _table(outcome)


def _bar(outcome: Outcome, series: Series) -> Bar:
    value = series.spread(outcome.scenario.metric)
    notification = "" if value is None else f"{shown(value.low)} to {shown(value.high)} {outcome.scenario.unit}"
    return Bar(series.entry.label, value, series.entry.contestant.kind.value, notification)


def _table(outcome: Outcome) -> Iterator[str]:
    columns = [name for name in SECONDARY if any(one.values(name) for one in outcome.series)]
    titles = "".join(f"<th>{escape(SECONDARY[name])}</th>" for name in columns)
    yield (
        "<figure><table><tr><th>contestant</th><th>median</th><th>least</th><th>greatest</th>"
        f'<th>ours is x times as good</th><th>jobs</th>{titles}<th class="words">configuration</th></tr>'
    )
    for series in outcome.series:
        yield _row(outcome, series, columns)
    yield "</table></figure>"


def _row(outcome: Outcome, series: Series, columns: list[str]) -> str:
    value = series.spread(outcome.scenario.metric)
    words = f'<td class="words">{escape(series.entry.settings)}</td>'
    if value is None:
        why = escape(series.error or "not measured")
        failed = f'<td class="words failed" colspan="{5 + len(columns)}">{why}</td>'
        return f"<tr><td>{escape(series.entry.label)}</td>{failed}{words}</tr>"
    ours = outcome.series[0]
    ratio = "" if series is ours else ratio_text(outcome.ratio(ours, series))
    figures = [shown(value.median), shown(value.low), shown(value.high), ratio, f"{series.jobs:,}"]
    figures += [_median(series.spread(name)) for name in columns]
    failed = f" (then failed: {escape(series.error)})" if series.error else ""
    cells = "".join(f"<td>{escape(one)}</td>" for one in figures)
    return f"<tr><td>{escape(series.entry.label)}{failed}</td>{cells}{words}</tr>"


def _median(value: Spread | None) -> str:
    return "" if value is None else shown(value.median)


def _facts(run: Run) -> Iterator[str]:
    yield "<h2>Machine, versions, settings</h2><table>"
    tables: list[Mapping[str, Any]] = [run.machine, run.versions, run.settings]
    for name, value in (pair for one in tables for pair in one.items()):
        yield f'<tr><td>{escape(name.replace("_", " "))}</td><td class="words">{escape(str(value))}</td></tr>'
    yield "</table>"
