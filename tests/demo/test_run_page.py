"""The page of a run, from events to lanes, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

from queuert.demo.run_page import Event, lanes, render, step_of, story

BEGIN = datetime(2026, 11, 26, 5, 0, tzinfo=UTC)


def event(kind: str, at: float, job: str, worker: str = "demo-1-a", attempt: int = 1, type: str = "measure") -> Event:
    return Event(kind, BEGIN + timedelta(seconds=at), job, attempt, type, worker)


EVENTS = sorted(
    [
        event("created", 0, "r", "", 0, "report"),
        event("started", 0.5, "a"), event("completed", 1, "a"),
        event("started", 1, "b"), event("lease_expired", 5, "b", "demo-2-b"),
        event("started", 1.5, "c", "demo-2-b"), event("completed", 2, "c", "demo-2-b"),
        event("started", 5.2, "b", "demo-2-b", 2), event("completed", 6, "b", "demo-2-b", 2),
        event("unblocked", 6, "r", "", 0, "report"),
        event("started", 6.1, "r", "demo-2-b", 1, "report"), event("completed", 7, "r", "demo-2-b", 1, "report"),
    ],
    key=lambda one: one.at,
)  # fmt: skip


def test_the_kill_the_leases_and_the_take_over_are_there() -> None:
    found = story(EVENTS, BEGIN + timedelta(seconds=2), "demo-1")
    assert (found.seconds, found.killed, found.workers) == (7.0, 2.0, ["demo-1-a", "demo-2-b"])
    assert [(one.job_id, one.began, one.ended) for one in found.lost] == [("b", 1.0, 5.0)]
    assert [(one.job_id, one.number) for one in found.taken_over] == [("b", 2)]
    assert found.join == (0.0, 6.0, 6.1, 7.0)
    page = render(found, files=3, lease=3.0)
    HTMLParser().feed(page)
    assert "After 2.0 s the worker demo-1 was killed: it held 1 jobs." in page
    assert "Their leases of 3 s ran out from 5.0 s on" in page
    assert "the last of them ended after 6.0 s" in page
    assert [page.count(f'<rect class="{one}"') for one in ("lost", "lease", "w1 again")] == [1, 1, 1]
    assert "demo-1 killed</text>" in page


def test_a_lane_is_used_again_when_it_is_free() -> None:
    found = story(EVENTS, None, "").attempts
    assert [len(lane) for lane in lanes(found)] == [4, 1]


def test_bars_are_as_short_as_the_run_allows() -> None:
    assert [step_of(one) for one in (1, 8, 60, 3_000, 400_000)] == [0.1, 0.1, 1.0, 60.0, 3_600.0]


def test_nothing_happened_and_nobody_was_killed() -> None:
    assert "No worker was killed." in render(story([], None, ""), files=0, lease=3.0)
    assert "No worker was killed." in render(story(EVENTS, None, ""), files=3, lease=3.0)


def test_names_are_text() -> None:
    page = render(
        story([event("started", 0, "<b>", "<i>"), event("completed", 1, "<b>", "<i>")], None, "<i>"), files=1, lease=1
    )
    assert "<i>" not in page
