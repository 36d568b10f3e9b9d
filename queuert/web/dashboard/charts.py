"""Charts, as the numbers of SVG shapes: templates draw them. Widths and heights are units of the picture's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import zip_longest
from typing import Literal

from queuert.activity import BOUNDS, Activity, Histogram, Period
from queuert.jobs import Job, JobStatus
from queuert.web.dashboard import formats

WIDTH, HEIGHT = 1000.0, 100.0
"""Of a chart over time. It is stretched to the place that the page has for it."""

_STEPS = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
_MIN_BAR = 1.0
_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class Span:
    """A time that charts over time show, in steps."""

    name: str
    title: str
    steps: int
    step: int
    """Seconds of a step."""
    by: Period
    """What is read: minutes are kept for some hours, hours for a month."""
    form: str
    """How a time of it is written at the axis."""

    @property
    def seconds(self) -> int:
        """How long it is."""
        return self.steps * self.step

    def begins(self, now: datetime) -> datetime:
        """When it begins: so that the step that is not over is the last one."""
        last = int(now.timestamp()) // self.step * self.step
        return datetime.fromtimestamp(last - (self.steps - 1) * self.step, UTC)


SPANS = {
    one.name: one
    for one in (
        Span("1h", "1 hour", 60, 60, "minute", "%H:%M"),
        Span("6h", "6 hours", 72, 300, "minute", "%H:%M"),
        Span("24h", "24 hours", 24, 3_600, "hour", "%a %H:%M"),
        Span("30d", "30 days", 60, 43_200, "hour", "%b %d"),
    )
}
DEFAULT_SPAN = SPANS["1h"]


# --- what workers did, over time ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    """What workers did in a step."""

    begins_at: datetime
    finished: int = 0
    failed: int = 0
    started: int = 0
    wait: Histogram = field(default_factory=Histogram)
    run: Histogram = field(default_factory=Histogram)

    @classmethod
    def of(cls, begins_at: datetime, parts: Sequence[Activity]) -> Sums:
        """Return the sum of what they did in the parts of it."""
        return cls(
            begins_at,
            finished=sum(one.completed + one.continued for one in parts),
            failed=sum(one.failed + one.retried + one.reaped for one in parts),
            started=sum(one.started for one in parts),
            wait=merged([one.wait for one in parts]),
            run=merged([one.run for one in parts]),
        )


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    return Histogram(tuple(map(sum, zip_longest(*[one.buckets for one in histograms], fillvalue=0))))


def steps_of(found: Iterable[Activity], span: Span, now: datetime) -> list[Sums]:
    """Return what workers did in each step of a span."""
    begin = span.begins(now)
    parts: list[list[Activity]] = [[] for _ in range(span.steps)]
    for one in found:
        index = int((one.begins_at - begin).total_seconds() // span.step)
        if 0 <= index < span.steps and one.seconds <= span.step:
            parts[index].append(one)
    return [Sums.of(begin + timedelta(seconds=span.step * index), part) for index, part in enumerate(parts)]


def total(steps: Iterable[Sums]) -> Sums:
    """Return the sum of steps."""
    found = list(steps)
    return Sums(
        begins_at=found[0].begins_at,
        finished=sum(one.finished for one in found),
        failed=sum(one.failed for one in found),
        started=sum(one.started for one in found),
        wait=merged([one.wait for one in found]),
        run=merged([one.run for one in found]),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle with a kind, by which it is painted, and a text for pointers and screen readers."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A step of a chart: where the pointer finds it, and what it is told."""

    x: float
    width: float
    title: str
    empty: bool = False
    """Whether nothing was then."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of an axis: where it is, from 0 at the top to 100 at the bottom, and its text."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class TimeChart:
    """Bars or lines over time, with both axes."""

    bars: Sequence[Bar]
    lines: Sequence[tuple[str, str]]
    """The name of a line, and its path."""
    columns: Sequence[Column]
    ticks: Sequence[Tick]
    times: Sequence[str]
    """Texts of the horizontal axis, in equal distances."""
    empty: bool = False


def rates_chart(steps: Sequence[Sums], span: Span, zone: tzinfo) -> TimeChart:
    """Return attempts that finished and failed, a bar for each step, as rates by the minute."""
    minutes = span.step / 60
    highest = nice(max((one.finished + one.failed for one in steps), default=0) / minutes)
    width, bars, columns = WIDTH / len(steps), [], []
    gap = min(2.5, width * 0.2)
    for index, one in enumerate(steps):
        top = HEIGHT
        for kind, count in (("completed", one.finished), ("failed", one.failed)):
            if count:
                height = max(_MIN_BAR, count / minutes / highest * HEIGHT)
                top -= height
                x = index * width + gap / 2
                bars.append(Bar(_r(x), _r(max(0.0, top)), _r(width - gap), _r(height), kind))
        title = f"{_time(one.begins_at, span, zone)}\n{one.finished:,} finished\n{one.failed:,} failed or retried"
        columns.append(Column(_r(index * width), _r(width), title, not one.finished + one.failed))
    ticks = _ticks(highest, lambda value: f"{formats.rate(value)}/min")
    return TimeChart(bars, (), columns, ticks, _times(steps, span, zone), not bars)


def quantiles_chart(steps: Sequence[Sums], span: Span, zone: tzinfo, what: Literal["wait", "run"]) -> TimeChart:
    """Return the quantiles of waits or runs, a line for each; steps without any are gaps.

    The scale is logarithmic, as the buckets are: the median is milliseconds where the slowest are minutes.
    """
    found = [[_within(getattr(one, what), share) for _, share in _SHARES] for one in steps]
    values = [value for row in found for value in row if value is not None]
    edges = _edges(min(values, default=0.01), max(values, default=1.0))
    low, high = math.log(edges[0]), math.log(edges[-1])
    width, lines = WIDTH / len(steps), []
    for place, (name, _) in enumerate(_SHARES):
        path, pen = [], "M"
        for index, row in enumerate(found):
            value = row[place]
            if value is None:
                pen = "M"
                continue
            x, y = _r((index + 0.5) * width), _r(HEIGHT * (high - math.log(value)) / (high - low))
            # A point alone is a line of no length, which round ends make visible.
            path.append(f"{pen}{x} {y}" + (f"L{x} {y}" if pen == "M" else ""))
            pen = "L"
        lines.append((name, "".join(path)))
    columns = [
        Column(
            _r(index * width),
            _r(width),
            "\n".join([_time(one.begins_at, span, zone), *_in_words(row)]),
            all(value is None for value in row),
        )
        for index, (one, row) in enumerate(zip(steps, found, strict=True))
    ]
    ticks = [Tick(_r(HEIGHT * (high - math.log(one)) / (high - low)), formats.axis(one)) for one in reversed(edges)]
    return TimeChart((), lines, columns, ticks, _times(steps, span, zone), not values)


_EDGES = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 360_000.0)


def _edges(lowest: float, highest: float) -> Sequence[float]:
    """The durations of the vertical axis: from the last one below all values to the first one above."""
    first = max(index for index, one in enumerate(_EDGES) if one <= max(lowest, _EDGES[0]))
    last = min(index for index, one in enumerate(_EDGES) if one >= min(highest, _EDGES[-1]))
    return _EDGES[first : max(last, first + 1) + 1]


def _within(found: Histogram, share: float) -> float | None:
    """A quantile for a line, which should not jump from bucket to bucket: as far within its bucket as its rank is."""
    rank = share * found.count
    for index, count in enumerate(found.buckets):
        if count and rank <= count:
            low = BOUNDS[index - 1] if index else BOUNDS[0] / 2
            high = BOUNDS[index] if index < len(BOUNDS) else 2 * BOUNDS[-1]
            return float(low * (high / low) ** (rank / count))
        rank -= count
    return None


def _in_words(row: Sequence[float | None]) -> list[str]:
    """The quantiles of a step, in words."""
    return [f"{name} {formats.about(value)}" for (name, _), value in zip(_SHARES, row, strict=True)]


def _time(at: datetime, span: Span, zone: tzinfo) -> str:
    text = formats.clock(at, zone, "%Y-%m-%d %H:%M")
    end = at + timedelta(seconds=span.step)
    return (
        f"{text} {formats.zone_name(zone, at)}" if span.step <= 60 else f"{text} to {formats.clock(end, zone, '%H:%M')}"
    )


def _times(steps: Sequence[Sums], span: Span, zone: tzinfo) -> list[str]:
    parts = 4
    begin = steps[0].begins_at
    texts = [
        formats.clock(begin + timedelta(seconds=span.seconds * part / parts), zone, span.form) for part in range(parts)
    ]
    return [*texts, "now"]


def nice(value: float) -> float:
    """Return the next larger number of which a half is easy to read, too.

    >>> [nice(one) for one in (0, 0.03, 7, 11, 26, 1345)]
    [1.0, 0.03, 8.0, 12.0, 30.0, 1600.0]
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(power * step for step in _STEPS if power * step >= value * 0.999_999):.6g}")


def _ticks(highest: float, shown: Callable[[float], str]) -> list[Tick]:
    return [Tick(y, shown(highest * (1 - y / 100))) for y in (0.0, 50.0, 100.0)]


def _r(value: float) -> float:
    return round(value, 2)


# --- sparklines and histograms --------------------------------------------------------------------------------------


SPARK_WIDTH, SPARK_HEIGHT = 120.0, 24.0


@dataclass(frozen=True, slots=True)
class Spark:
    """A small chart without axes."""

    bars: Sequence[Bar]
    text: str
    """What it shows, for screen readers."""

    @property
    def paths(self) -> dict[str, str]:
        """The bars of each kind as one path: a page has many small charts."""
        found: dict[str, str] = {}
        for bar in self.bars:
            outline = f"M{bar.x:g} {bar.y:g}h{bar.width:g}v{bar.height:g}h-{bar.width:g}z"
            found[bar.kind] = found.get(bar.kind, "") + outline
        return found


def spark(steps: Sequence[Sums]) -> Spark:
    """Return what finished and failed in each step, as a small chart."""
    highest = max((one.finished + one.failed for one in steps), default=0)
    width, bars = SPARK_WIDTH / len(steps), []
    for index, one in enumerate(steps):
        top = SPARK_HEIGHT
        for kind, count in (("completed", one.finished), ("failed", one.failed)):
            if count:
                height = max(_MIN_BAR, count / highest * SPARK_HEIGHT)
                top -= height
                bars.append(Bar(_r(index * width), _r(max(0.0, top)), _r(max(0.8, width - 0.5)), _r(height), kind))
    finished, failed = sum(one.finished for one in steps), sum(one.failed for one in steps)
    return Spark(bars, f"{finished:,} finished, {failed:,} failed or retried")


@dataclass(frozen=True, slots=True)
class HistogramChart:
    """How many durations are in each bucket, and where the quantiles are."""

    bars: Sequence[Bar]
    columns: Sequence[Column]
    marks: Sequence[tuple[str, float, str]]
    """Name, place from 0 to 1000 and duration of each quantile."""
    texts: Sequence[str]
    """Texts of the horizontal axis, in equal distances."""
    count: int


def histogram_chart(found: Histogram) -> HistogramChart:
    """Return the chart of a histogram, from its first bucket with durations to its last."""
    counts = list(found.buckets)
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return HistogramChart((), (), (), (), 0)
    first, last = max(0, used[0] - 1), used[-1] + 1
    # The axis has texts at quarters: each must be at an edge of a bucket.
    while (last + 1 - first) % 4:
        first, last = (first - 1, last) if first and last >= len(BOUNDS) else (first, last + 1)
    counts += [0] * (last + 1 - len(counts))
    width, highest = WIDTH / (last + 1 - first), max(counts)
    bars, columns = [], []
    for place, index in enumerate(range(first, last + 1)):
        height = counts[index] / highest * HEIGHT
        if counts[index]:
            height = max(_MIN_BAR, height)
            bars.append(Bar(_r(place * width + 1), _r(HEIGHT - height), _r(width - 2), _r(height), "histogram"))
        share = formats.percent(counts[index] / found.count)
        title = f"{_edge(index - 1)} to {_edge(index)}\n{counts[index]:,} attempts, {share}"
        columns.append(Column(_r(place * width), _r(width), title, not counts[index]))
    marks = []
    for name, share_of in _SHARES:
        value = found.quantile(share_of)
        if value is not None:
            bucket = next(index for index, bound in enumerate((*BOUNDS, math.inf)) if value < bound)
            marks.append((name, _r((bucket - first + 0.5) * width), formats.about(value)))
    texts = [_edge(first - 1 + part * (last + 1 - first) // 4) for part in range(5)]
    return HistogramChart(bars, columns, marks, texts, found.count)


def _edge(index: int) -> str:
    """The upper bound of a bucket."""
    if index < 0:
        return "0"
    return formats.brief(BOUNDS[index]) if index < len(BOUNDS) else "longer"


# --- attempts over time ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GanttRow:
    """A job, and when it waited and ran."""

    job: Job
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Gantt:
    """When each job waited and ran, one below the other."""

    rows: Sequence[GanttRow]
    values: Sequence[tuple[str, str, str]]
    """What the bars say, of at most :data:`MOST_VALUES`: an id, the type of the job, and a text."""
    bars: int
    """How many bars there are."""
    begin: datetime
    seconds: float
    ticks: Sequence[tuple[float, str]]
    """Places from 0 to 1000, and the seconds since the begin."""


MOST_VALUES = 200
"""The most bars of a timeline whose values are in a table."""

WAITING = (JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.READY)
_WAITS = ("waiting", *map(str, WAITING))
ROW = 20.0
"""The height of a row."""


def _end(job: Job, now: datetime) -> datetime:
    open_now = job.status is JobStatus.RUNNING or job.status in WAITING
    return now if open_now else job.finished_at or job.started_at or job.created_at


def gantt(jobs: Sequence[Job], now: datetime, zone: tzinfo, *, errors: bool) -> Gantt | None:
    """Return the chart of jobs in order; None if there are none. ``errors``: whether errors may be shown."""
    if not jobs:
        return None
    begin = min(job.created_at for job in jobs)
    end = max(begin, *(_end(job, now) for job in jobs))
    seconds = max(0.001, (end - begin).total_seconds())

    def bar(since: datetime, until: datetime, kind: str, what: str) -> Bar:
        x = max(0.0, (since - begin).total_seconds() / seconds * WIDTH)
        width = max(2.0 if kind in _WAITS else 4.0, (until - since).total_seconds() / seconds * WIDTH)
        title = f"{what}\n{formats.between(since, until)}\nfrom {formats.clock(since, zone, '%H:%M:%S')}"
        return Bar(_r(min(x, WIDTH - width)), 0.0, _r(width), ROW, kind, title)

    rows = []
    for job in jobs:
        bars, since = [], job.created_at
        for failure in job.failures:
            started = failure.started_at or failure.failed_at
            if started > since:
                bars.append(bar(since, started, "waiting", f"waited before attempt {failure.attempt}"))
            what = f"attempt {failure.attempt} failed"
            what += f": {formats.short(failure.error.summary, 80)}" if errors else ""
            bars.append(bar(started, failure.failed_at, "failed", what))
            since = failure.failed_at
        if job.status in WAITING:
            bars.append(bar(since, now, str(job.status), f"{job.status} since then"))
        elif job.started_at is not None and job.started_at >= since:
            bars.append(bar(since, job.started_at, "waiting", f"waited before attempt {job.attempt}"))
            bars.append(bar(job.started_at, _end(job, now), str(job.status), f"attempt {job.attempt}: {job.status}"))
        elif job.finished_at is not None and job.finished_at > since:
            # Cancelled while it waited, or completed by a client.
            bars.append(bar(since, job.finished_at, "waiting", f"waited, then {job.status} without an attempt"))
            bars.append(bar(job.finished_at, job.finished_at, str(job.status), f"{job.status} without an attempt"))
        # An attempt may be too short to be seen beside hours of waiting: it is drawn on top.
        rows.append(GanttRow(job, sorted(bars, key=lambda one: one.kind not in _WAITS)))
    ticks = [(_r(WIDTH * part / 4), "0" if not part else f"+{formats.brief(seconds * part / 4)}") for part in range(5)]
    values = [
        (f"{place}-{number}", row.job.type, bar.title.replace("\n", ", "))
        for place, row in enumerate(rows)
        for number, bar in enumerate(row.bars)
    ]
    # The newest jobs are the last.
    return Gantt(rows, values[-MOST_VALUES:], len(values), begin, seconds, ticks)
