"""The story of a run as one page: what ended when, and what each worker did, before and after the kill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise

from queuert.demo.database import Database
from queuert.demo.settings import SCHEMA
from queuert.page_style import page_style

EVENTS = f"""
    SELECT kind, happened_at, job_id, attempt, type, coalesce(worker, '') FROM {SCHEMA}.event
    WHERE NOT starts_with(type, 'queuert.') ORDER BY happened_at, seq
"""

_ENDS = ("completed", "continued", "failed", "retried", "cancelled", "lease_expired")
_WIDTH, _LEFT, _RIGHT = 1100.0, 90.0, 20.0
_BAR_HEIGHT, _LANE = 140.0, 7.0
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0)
_MOST_STEPS = 80

_STYLE = """
.w0 { fill: var(--running); } .w1 { fill: var(--continued); } .w2 { fill: var(--scheduled); }
.w3 { fill: var(--ready); }
.lost { fill: var(--failed); } .lease { fill: none; stroke: var(--failed); stroke-dasharray: 3 2; }
.again { stroke: var(--text); stroke-width: 1; } .waits { fill: var(--waiting); } .join { fill: var(--completed); }
.kill { stroke: var(--failed); stroke-width: 1.5; } .kill-text { fill: var(--failed-text); font-weight: 600; }
.tick { stroke: var(--line); } .name { font-weight: 600; fill: var(--text); }
"""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the log."""

    kind: str
    at: datetime
    job_id: str
    attempt: int
    type: str
    worker: str


@dataclass(slots=True)
class Attempt:
    """An attempt of a job; seconds are since the first event."""

    job_id: str
    number: int
    type: str
    worker: str
    began: float
    ended: float
    lost: bool = False
    """Whether its lease ran out."""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, in seconds since the first event."""

    seconds: float
    attempts: Sequence[Attempt]
    killed: float | None
    victim: str
    join: tuple[float, float, float, float] | None
    """When the report was created, unblocked, begun and done."""

    @property
    def workers(self) -> list[str]:
        """The workers, in the order in which they began."""
        return list(dict.fromkeys(one.worker for one in self.attempts))

    @property
    def lost(self) -> list[Attempt]:
        """The attempts of the worker that was killed whose leases ran out."""
        return [one for one in self.attempts if one.lost]

    @property
    def taken_over(self) -> list[Attempt]:
        """The next attempts of these jobs."""
        ids = {one.job_id for one in self.lost}
        return [one for one in self.attempts if one.job_id in ids and one.number > 1 and not one.lost]


def read_story(database: Database, killed_at: datetime | None, victim: str) -> Story:
    """Read the story from the event log."""
    return story([Event(*row) for row in database.rows(EVENTS)], killed_at, victim)


def story(events: Sequence[Event], killed_at: datetime | None, victim: str) -> Story:
    """Return the story that events tell, which are in the order of time."""
    if not events:
        return Story(0.0, (), None, victim, None)
    begin = events[0].at
    attempts: dict[tuple[str, int], Attempt] = {}
    join: dict[str, float] = {}
    for one in events:
        at = (one.at - begin).total_seconds()
        key = one.job_id, one.attempt
        if one.type == "report":
            join.setdefault(one.kind, at)
        if one.kind == "started":
            attempts[key] = Attempt(one.job_id, one.attempt, one.type, one.worker, at, at)
        elif one.kind in _ENDS and key in attempts:
            attempts[key].ended = at
            attempts[key].lost = one.kind == "lease_expired"
    seconds = (events[-1].at - begin).total_seconds()
    killed = None if killed_at is None else (killed_at - begin).total_seconds()
    moments = tuple(join.get(kind, 0.0) for kind in ("created", "unblocked", "started", "completed"))
    return Story(max(seconds, 0.001), list(attempts.values()), killed, victim, moments if join else None)  # type: ignore[arg-type]


def lanes(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """Return attempts of a worker in as few lanes as were busy at once."""
    found: list[list[Attempt]] = []
    for one in sorted(attempts, key=lambda each: each.began):
        free = next((lane for lane in found if lane[-1].ended <= one.began), None)
        if free is None:
            found.append([one])
        else:
            free.append(one)
    return found


def render(found: Story, *, files: int, lease: float) -> str:
    """Return the page."""
    parts = [
        '<!doctype html><html lang="en" data-theme="auto"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Queuert demo</title><style>{page_style()}{_STYLE}</style></head><body>",
        "<h1>The run</h1>",
        f"<p>{_summary(found, files, lease)}</p>",
    ]
    if found.attempts:
        parts += [*_ended(found), *_workers(found)]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _summary(found: Story, files: int, lease: float) -> str:
    text = f"{files:,} files in {found.seconds:.1f} s, by {len(found.workers)} workers."
    if found.killed is None:
        return escape(text + " No worker was killed.")
    lost, again = found.lost, found.taken_over
    text += f" After {found.killed:.1f} s the worker {found.victim} was killed: it held {len(lost)} jobs."
    if lost:
        text += (
            f" Their leases of {lease:g} s ran out from {min(one.ended for one in lost):.1f} s on, and the others ran "
            f"them again: the last of them ended after {max((one.ended for one in again), default=0.0):.1f} s."
        )
    return escape(text)


def _x(found: Story, at: float) -> float:
    return _LEFT + at / found.seconds * (_WIDTH - _LEFT - _RIGHT)


def _svg(found: Story, height: float, label: str, body: Iterator[str]) -> Iterator[str]:
    yield f'<figure><svg viewBox="0 0 {_WIDTH:g} {height + 24:g}" width="{_WIDTH:g}" role="img" aria-label="{label}">'
    for part in range(5):
        at = found.seconds * part / 4
        x = _x(found, at)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="14" y2="{height:g}"></line>'
        yield f'<text x="{x:.1f}" y="{height + 16:g}" text-anchor="middle">{at:.1f} s</text>'
    yield from body
    if found.killed is not None:
        x = _x(found, found.killed)
        yield f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="14" y2="{height:g}"></line>'
        yield f'<text class="kill-text" x="{x + 4:.1f}" y="12">{escape(found.victim)} killed</text>'
    yield "</svg></figure>"


def name_of(worker: str) -> str:
    """Return the name of a worker, of its id."""
    return worker.rpartition("-")[0] or worker


def step_of(seconds: float) -> float:
    """Return the seconds of a bar: the shortest with which there are not too many."""
    return next((one for one in _STEPS if seconds / one <= _MOST_STEPS), _STEPS[-1])


def _ended(found: Story) -> Iterator[str]:
    step = step_of(found.seconds)
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in found.attempts:
        if not one.lost:
            counts[int(one.ended / step)][one.worker] += 1
    highest = max((sum(by.values()) for by in counts.values()), default=1)
    tones = {worker: index % 4 for index, worker in enumerate(found.workers)}
    yield f"<h2>Jobs that ended, every {step:g} s</h2>"
    square = '<svg width="10" height="10"><rect class="w{}" width="10" height="10"></rect></svg> {}'
    keys = " ".join(square.format(tone, escape(name_of(worker))) for worker, tone in tones.items())
    yield f"<p>By worker: {keys}. The highest bar is {highest:,} jobs.</p>"

    def bars() -> Iterator[str]:
        widest = max(1.0, _x(found, step) - _x(found, 0) - 1)
        for index, by in sorted(counts.items()):
            top = _BAR_HEIGHT
            for worker, count in sorted(by.items(), key=lambda item: tones[item[0]]):
                height = count / highest * (_BAR_HEIGHT - 20)
                top -= height
                x = _x(found, index * step)
                width = max(1.0, min(widest, _WIDTH - _RIGHT - x))
                title = f"{index * step:g} s: {count} jobs of {name_of(worker)}"
                yield (
                    f'<rect class="w{tones[worker]}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{height:.1f}"><title>{escape(title)}</title></rect>'
                )

    yield from _svg(found, _BAR_HEIGHT, "Jobs that ended over time, by worker", bars())


def _workers(found: Story) -> Iterator[str]:
    by_worker = {worker: lanes([one for one in found.attempts if one.worker == worker]) for worker in found.workers}
    again = {(one.job_id, one.number) for one in found.taken_over}
    yield "<h2>What each worker ran</h2>"
    yield (
        "<p>As many lines as attempts were open at once. Red: attempts of the killed worker, dashed until their leases "
        "ran out. Framed: the same jobs, run again by others. At the end the report, which waited for all files.</p>"
    )
    heights = [len(rows) * _LANE + 14 for rows in by_worker.values()]
    height = sum(heights) + 20 + (24 if found.join else 0)

    def body() -> Iterator[str]:
        y = 20.0
        for index, (worker, rows) in enumerate(by_worker.items()):
            yield f'<text class="name" x="0" y="{y + 8:g}">{escape(name_of(worker))}</text>'
            for place, lane in enumerate(rows):
                for one in lane:
                    yield from _attempt(found, one, index % 4, y + place * _LANE, (one.job_id, one.number) in again)
            y += len(rows) * _LANE + 14
        if found.join:
            yield from _join(found, found.join, y)

    yield from _svg(found, height, "Attempts of each worker over time", body())


def _attempt(found: Story, one: Attempt, tone: int, y: float, again: bool) -> Iterator[str]:
    ended = one.ended if not one.lost or found.killed is None else max(one.began, found.killed)
    x, end = _x(found, one.began), _x(found, ended)
    kind = "lost" if one.lost else f"w{tone}"
    title = f"{one.type}, attempt {one.number}: {one.began:.2f} to {one.ended:.2f} s"
    yield (
        f'<rect class="{kind}{" again" if again else ""}" x="{x:.1f}" y="{y:g}" width="{max(0.8, end - x):.1f}" '
        f'height="{_LANE - 2:g}"><title>{escape(title)}</title></rect>'
    )
    if one.lost:
        out = _x(found, one.ended)
        yield f'<rect class="lease" x="{end:.1f}" y="{y:g}" width="{out - end:.1f}" height="{_LANE - 2:g}"></rect>'


def _join(found: Story, moments: tuple[float, float, float, float], y: float) -> Iterator[str]:
    created, _, started, done = moments
    yield f'<text class="name" x="0" y="{y + 9:g}">the report</text>'
    for kind, (begin, end) in zip(("waits", "join"), pairwise((created, started, done)), strict=True):
        width = max(1.5, _x(found, end) - _x(found, begin))
        yield f'<rect class="{kind}" x="{_x(found, begin):.1f}" y="{y:g}" width="{width:.1f}" height="10"></rect>'
