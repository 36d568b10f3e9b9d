"""The report as one HTML page, with its styles and charts inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from html import escape

from queuert.page_style import page_style
from queuert.spark.history.charts import Points, legend, lines, shown
from queuert.spark.history.view_models import Hour, Percentiles, Shown

_MOST_TYPES = 8
_SHARES = ("p50", "p95", "p99")

_STYLE = """
:root { --c0: var(--running); --c1: var(--blocked); --c2: var(--failed); --c3: var(--completed); --c4: var(--scheduled);
  --c5: var(--continued); --c6: var(--ready); --c7: var(--cancelled); }
.lost { color: var(--c2); } svg .axis { text-anchor: end; dominant-baseline: middle; }
svg .grid { stroke: var(--line); fill: none; } svg .line { fill: none; stroke-width: 1.5; stroke: currentColor; }
svg circle { fill: currentColor; } .key { margin-right: 1rem; } .key::before { content: "\\25CF "; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
"""


def page(content: Shown) -> str:
    """Return the page."""
    types = busiest(content.hours)
    parts = [
        '<!doctype html><html lang="en" data-theme="auto"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Queuert history</title><style>{page_style()}{_STYLE}</style></head><body>",
        *_head(content),
    ]
    if content.hours:
        span = (content.hours[0].hour, content.hours[-1].hour)
        parts += _types(content.hours)
        if span[0] == span[1]:
            parts.append("<p>All of it is of one hour: charts over time begin with the second.</p>")
        else:
            parts += [*_over_time(content.hours, types, span), *_by_type(content.hours, types, span)]
        parts += _failures(content)
    parts += [*_archive(content), "</body></html>"]
    return "\n".join(parts) + "\n"


def busiest(hours: Sequence[Hour]) -> list[str]:
    """Return the busiest job types, at most as many as a chart can distinguish."""
    finished: defaultdict[str, int] = defaultdict(int)
    for one in hours:
        finished[one.type] += one.finished + one.started
    return sorted(finished, key=lambda name: (-finished[name], name))[:_MOST_TYPES]


def _head(content: Shown) -> Iterator[str]:
    yield "<h1>Queuert history</h1>"
    if content.through is None:
        yield "<p>Nothing has been rolled up yet.</p>"
        return
    begun = any(one.hour >= content.through for one in content.hours)
    last = ", and what there is of the hour that is not over" if begun else ""
    days = "1 day" if content.days == 1 else f"{content.days} days"
    yield f"<p>{days}, all hours before {content.through:%Y-%m-%d %H:%M} UTC{last}. All times are UTC.</p>"
    if content.lost:
        yield '<p class="lost">Retention took events before they were rolled up: days are missing, or have too few.</p>'
    if not content.hours:
        yield "<p>Nothing happened in these days.</p>"


def _types(hours: Sequence[Hour]) -> Iterator[str]:
    of_type: defaultdict[str, list[Hour]] = defaultdict(list)
    for one in hours:
        of_type[one.type].append(one)
    yield "<h2>Types</h2><figure><table><tr><th>type</th><th>started</th><th>finished</th><th>failed</th>"
    yield "<th>retried</th><th>lease losses</th><th>most attempts</th><th>worst hour: wait p95</th>"
    yield "<th>worst hour: run p95</th></tr>"
    for name, own in sorted(of_type.items()):
        counts = [sum(getattr(one, what) for one in own) for what in
                  ("started", "finished", "failed", "retried", "lease_losses")]  # fmt: skip
        attempts = max((one.attempts_max or 0 for one in own), default=0)
        worst = [max((of(one)[1] or 0.0 for one in own), default=0.0) for of in (_waits, _runs)]
        cells = [*(f"{count:,}" for count in counts), str(attempts), *(f"{shown(value)} s" for value in worst)]
        yield f"<tr><td>{escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table></figure>"


def _waits(hour: Hour) -> Percentiles:
    return hour.waits


def _runs(hour: Hour) -> Percentiles:
    return hour.runs


def _over_time(hours: Sequence[Hour], types: Sequence[str], span: tuple[datetime, datetime]) -> Iterator[str]:
    charts = {
        "Throughput": (lambda one: one.finished, "attempts that ended in the hour"),
        "Failures": (lambda one: one.failed + one.retried, "attempts that failed in the hour"),
        "Lease losses": (lambda one: one.lease_losses, "leases that nobody renewed"),
    }  # fmt: skip
    for title, (value, note) in charts.items():
        series = {name: _points(hours, name, value) for name in types}
        yield f"<h2>{title}</h2>{legend(types)}<figure>{lines(series, title, '', span)}"
        yield f"<figcaption>{note}</figcaption></figure>"


def _by_type(hours: Sequence[Hour], types: Sequence[str], span: tuple[datetime, datetime]) -> Iterator[str]:
    for title, of, note in (
        ("Queue wait", _waits, "from when a job was due until it was claimed"),
        ("Run time", _runs, "from the claim to the end of the attempt"),
    ):
        yield f"<h2>{title}</h2>{legend(_SHARES)}<p>Seconds, {note}.</p>"
        for name in types:
            series = {share: _points(hours, name, _share(of, at)) for at, share in enumerate(_SHARES)}
            if any(series.values()):
                chart = lines(series, f"{title} of {name}", "s", span)
                yield f"<h3>{escape(name)}</h3><figure>{chart}</figure>"


def _share(of: Callable[[Hour], Percentiles], at: int) -> Callable[[Hour], float | None]:
    return lambda hour: of(hour)[at]


def _points(hours: Sequence[Hour], name: str, value: Callable[[Hour], float | None]) -> Points:
    found = ((one.hour, value(one)) for one in hours if one.type == name)
    return [(hour, float(one)) for hour, one in found if one is not None]


def _failures(content: Shown) -> Iterator[str]:
    if not content.failures:
        return
    yield '<h2>Errors</h2><figure><table><tr><th>type</th><th class="words">error</th><th>attempts</th>'
    yield '<th>jobs that it ended</th><th class="words">for example</th></tr>'
    for one in content.failures:
        error = one.error_kind + (f": {one.error_type}" if one.error_type else "")
        yield (
            f'<tr><td>{escape(one.type)}</td><td class="words">{escape(error)}</td><td>{one.failures:,}</td>'
            f'<td>{one.final:,}</td><td class="words">{escape(one.sample or "")}</td></tr>'
        )
    yield "</table></figure>"


def _archive(content: Shown) -> Iterator[str]:
    if not content.archived:
        return
    yield "<h2>Archive</h2><figure><table><tr><th>run</th><th>chains</th><th>jobs</th><th>events</th><th>kept</th></tr>"
    for one in content.archived:
        cells = "".join(f"<td>{count:,}</td>" for count in (one.chains, one.jobs, one.events, one.kept))
        yield f"<tr><td>{escape(one.run)}</td>{cells}</tr>"
    yield "</table></figure>"
