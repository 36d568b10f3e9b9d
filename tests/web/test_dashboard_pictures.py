"""The numbers of the dashboard's pictures: the graph of a chain, the states of a job, charts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from queuert.activity import Activity, Histogram
from queuert.jobs import Job, JobError, JobFailure, JobStatus
from queuert.web.dashboard.charts import (
    HEIGHT,
    SPANS,
    WIDTH,
    gantt,
    histogram_chart,
    quantiles_chart,
    rates_chart,
    spark,
    steps_of,
    total,
)
from queuert.web.dashboard.graph import (
    GAP_X,
    MARGIN,
    MOST,
    MOST_JOBS,
    NODE_HEIGHT,
    NODE_WIDTH,
    NOTE,
    Graph,
    Related,
    graph_of,
)
from queuert.web.dashboard.states import machine_of

NOW = datetime(2026, 11, 25, 12, 30, 20, tzinfo=UTC)


def job(index: int = 0, status: JobStatus = JobStatus.COMPLETED, **values: Any) -> Job:
    """A job of a chain that began ten seconds ago; each job took one second."""
    began = NOW - timedelta(seconds=10 - index)
    given: dict[str, Any] = {
        "id": f"job-{index}",
        "type": f"type-{index}",
        "chain_id": "chain",
        "chain_index": index,
        "status": status,
        "priority": 0,
        "attempt": 1,
        "uncounted": 0,
        "lease_expirations": 0,
        "open_blockers": 0,
        "input": None,
        "output": None,
        "last_error": None,
        "created_at": began,
        "scheduled_at": began,
        "started_at": began + timedelta(seconds=0.5),
        "finished_at": began + timedelta(seconds=1),
        "holder": "worker",
        "lease_expires_at": None,
        "continued_by": None,
    }
    return Job(**{**given, **values})


def failure(attempt: int, begins: float, ends: float) -> JobFailure:
    at = [NOW + timedelta(seconds=one) for one in (begins, ends)]
    return JobFailure(attempt, at[0], at[1], "worker", JobError("handler", "secret", "app.Down"))


def places(graph: Graph) -> list[tuple[int, int]]:
    return [(node.x, node.y) for node in graph.nodes]


def test_jobs_are_a_line_with_an_arrow_between_two() -> None:
    graph = graph_of([job(0), job(1), job(2)], {}, {}, [])
    step = NODE_WIDTH + GAP_X
    assert places(graph) == [(MARGIN, MARGIN), (MARGIN + step, MARGIN), (MARGIN + 2 * step, MARGIN)]
    assert [edge.kind for edge in graph.edges] == ["next", "next"]
    assert (graph.width, graph.height) == (2 * MARGIN + 3 * NODE_WIDTH + 2 * GAP_X, 2 * MARGIN + NODE_HEIGHT)


def test_blockers_are_above_children_below_and_dependents_to_the_right() -> None:
    graph = graph_of(
        [job(0)],
        {"job-0": [Related("before", "restock", "open")]},
        {"job-0": [Related("after", "picture", "completed")]},
        [Related("waits", "invoice", "blocked")],
    )
    found = {node.kind: node for node in graph.nodes}
    middle = found["job"]
    assert (found["blocker"].x, found["blocker"].y < middle.y) == (middle.x, True)
    assert (found["child"].x, found["child"].y > middle.y) == (middle.x, True)
    assert (found["dependent"].x > middle.x + NODE_WIDTH, found["dependent"].y) == (True, middle.y)
    # What something waits for now is marked.
    assert {edge.kind: edge.active for edge in graph.edges} == {"blocker": True, "child": False, "dependent": True}


def test_many_of_one_type_and_status_are_one_box() -> None:
    many = [Related(f"c{n}", "picture", "completed") for n in range(184)]
    few = [Related(f"d{n}", "picture", "open") for n in range(MOST)]
    graph = graph_of([job(0)], {}, {"job-0": [*many, *few]}, many, more_dependents=True)
    children = [node for node in graph.nodes if node.kind == "child"]
    assert [node.title for node in children] == ["184 x picture", *["picture"] * MOST]
    assert (children[0].id, children[1].id) == (None, "d0")
    assert [node.title for node in graph.nodes if node.kind == "dependent"] == ["184 x picture", "more"]


def test_no_two_boxes_overlap() -> None:
    related = {f"job-{n}": [Related(f"{n}-{m}", f"t{m}", "open") for m in range(n * 2)] for n in range(5)}
    graph = graph_of(
        [job(n) for n in range(5)], related, related, [Related(f"d{n}", f"t{n}", "open") for n in range(9)]
    )
    boxes = places(graph)
    assert len(set(boxes)) == len(boxes)
    for number, (x, y) in enumerate(boxes):
        assert 0 <= x <= graph.width - NODE_WIDTH
        assert 0 <= y <= graph.height - NODE_HEIGHT
        for other_x, other_y in boxes[number + 1 :]:
            assert abs(x - other_x) >= NODE_WIDTH or abs(y - other_y) >= NODE_HEIGHT


def test_of_a_long_chain_the_last_jobs_are_drawn() -> None:
    graph = graph_of([job(n) for n in range(MOST_JOBS + 5)], {}, {}, [])
    assert (len(graph.nodes), graph.left_out, graph.nodes[-1].id) == (MOST_JOBS, 5, f"job-{MOST_JOBS + 4}")


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (job(attempt=0, status=JobStatus.READY, started_at=None, finished_at=None), ["ready"]),
        (job(), ["ready", "running", "completed"]),
        (job(status=JobStatus.RUNNING, finished_at=None), ["ready", "running"]),
        (job(status=JobStatus.FAILED, failures=(failure(1, -9, -8),)), ["ready", "running", "failed"]),
        (
            job(status=JobStatus.COMPLETED, attempt=2, failures=(failure(1, -9, -8),)),
            ["scheduled", "ready", "running", "completed"],
        ),
        (job(status=JobStatus.SCHEDULED, failures=(failure(1, -9, -8),)), ["scheduled", "ready", "running"]),
    ],
)
def test_the_states_of_a_job_are_those_that_it_was_in(found: Job, reached: list[str]) -> None:
    machine = machine_of(found, had_blockers=False)
    assert {one.status for one in machine.states if one.reached} == set(reached)
    assert [one.status for one in machine.states if one.current] == [found.status]


def test_a_job_that_had_blockers_was_blocked() -> None:
    assert {one.status for one in machine_of(job(), had_blockers=True).states if one.reached} >= {"blocked", "ready"}


def test_the_timeline_shows_each_attempt_and_errors_only_if_they_may_be_shown() -> None:
    failed = job(0, JobStatus.FAILED, attempt=2, failures=(failure(1, -9, -8), failure(2, -6, -5)))
    chart = gantt([failed, job(5)], NOW, UTC, errors=False)
    assert chart is not None
    first, second = chart.rows
    # What is short is not hidden by what is long.
    assert [bar.kind for bar in first.bars] == ["waiting", "waiting", "failed", "failed"]
    assert [bar.kind for bar in second.bars] == ["waiting", "completed"]
    assert chart.seconds == 6.0
    assert (first.bars[2].x, first.bars[2].width) == (round(WIDTH / 6, 2), round(WIDTH / 6, 2))
    assert first.bars[2].title.splitlines()[0] == "attempt 1 failed"
    shown = gantt([failed], NOW, UTC, errors=True)
    assert shown is not None
    assert shown.rows[0].bars[2].title.splitlines()[0] == "attempt 1 failed: app.Down: secret"
    assert gantt([], NOW, UTC, errors=True) is None


def test_a_job_that_ended_without_an_attempt_has_a_bar() -> None:
    for one in (
        job(0, JobStatus.CANCELLED, attempt=0, started_at=None),
        # It was cancelled while it waited for its next attempt.
        job(
            0,
            JobStatus.CANCELLED,
            failures=(failure(1, -9, -8),),
            started_at=NOW - timedelta(seconds=9),
            finished_at=NOW,
        ),
    ):
        chart = gantt([one], NOW, UTC, errors=False)
        assert chart is not None
        assert [bar.kind for bar in chart.rows[0].bars][-2:] in (["waiting", "cancelled"], ["failed", "cancelled"])
        assert [bar.title.splitlines()[0] for bar in chart.rows[0].bars][-1] == "cancelled without an attempt"


@pytest.mark.parametrize("used", [[6], [6, 9], [0, 25], [26], [3, 26], [1, 3, 8]])
def test_the_axis_of_a_histogram_has_edges_of_buckets(used: list[int]) -> None:
    counts = [0] * 27
    for index in used:
        counts[index] = 1
    chart = histogram_chart(Histogram(tuple(counts)))
    edges = [column.title.splitlines()[0].partition(" to ") for column in chart.columns]
    quarter, rest = divmod(len(edges), 4)
    assert rest == 0
    texts = [edges[0][0], *(edges[quarter * part - 1][2] for part in range(1, 5))]
    assert list(chart.texts) == texts


@pytest.mark.parametrize("id", ["order-21", "01a21516-d4c5-7dbb-a36f-011eb998a262", "x" * 500, "two\nlines" * 20])
@pytest.mark.parametrize("status", ["open", "completed", "cancelled"])
def test_an_id_fits_into_its_box(id: str, status: str) -> None:
    graph = graph_of([job()], {job().id: [Related(id, "picture", status)]}, {}, [], more_dependents=False)
    [node] = [one for one in graph.nodes if one.kind == "blocker"]
    assert len(node.note) + len(status) <= NOTE
    assert "\n" not in node.note
    assert node.note[-6:] == id.replace("\n", " ")[-6:]


def minute(back: int, completed: int, failed: int = 0, run: Histogram = Histogram()) -> Activity:  # noqa: B008
    at = NOW.replace(second=0) - timedelta(minutes=back)
    return Activity(at, 60, "one", None, started=completed + failed, completed=completed, failed=failed, run=run)


def test_rates_are_by_the_minute_and_failures_on_top() -> None:
    steps = steps_of([minute(0, 30, 10), minute(59, 20), minute(60, 1_000)], SPANS["1h"], NOW)
    chart = rates_chart(steps, SPANS["1h"], UTC)
    assert [(bar.kind, bar.height) for bar in chart.bars] == [
        ("completed", 50.0),
        ("completed", 75.0),
        ("failed", 25.0),
    ]
    assert all(bar.y >= 0 and bar.y + bar.height <= HEIGHT + 0.01 for bar in chart.bars)
    assert [tick.text for tick in chart.ticks] == ["40.0/min", "20.0/min", "0/min"]
    assert (total(steps).finished, total(steps).failed) == (50, 10)
    assert chart.columns[-1].title == "2026-11-25 12:30 UTC\n30 finished\n10 failed or retried"
    assert spark(steps).text == "50 finished, 10 failed or retried"


def test_a_step_of_hours_is_a_rate_by_the_minute_too() -> None:
    at = NOW.replace(minute=0, second=0)
    hour = Activity(at, 3_600, "one", None, started=600, completed=600)
    chart = rates_chart(steps_of([hour], SPANS["24h"], NOW), SPANS["24h"], ZoneInfo("Europe/Berlin"))
    assert chart.ticks[0].text == "10.0/min"
    assert chart.columns[-1].title.startswith("2026-11-25 13:00 to 14:00")


def test_quantiles_are_lines_with_gaps_on_a_logarithmic_scale() -> None:
    run = Histogram((0,) * 10 + (10,))
    steps = steps_of([minute(30, 10, run=run), minute(28, 10, run=run), minute(27, 10, run=run)], SPANS["1h"], NOW)
    chart = quantiles_chart(steps, SPANS["1h"], UTC, "run")
    assert [name for name, _ in chart.lines] == ["p50", "p95", "p99"]
    assert [path.count("M") for _, path in chart.lines] == [2, 2, 2]
    assert [tick.text for tick in chart.ticks] == ["10 s", "1 s", "100 ms"]
    assert quantiles_chart(steps_of([], SPANS["1h"], NOW), SPANS["1h"], UTC, "run").empty


def test_a_histogram_has_its_quantiles_marked() -> None:
    chart = histogram_chart(Histogram((0,) * 6 + (90, 0, 0, 10)))
    assert [bar.height for bar in chart.bars] == [HEIGHT, round(HEIGHT / 9, 2)]
    marks = [(name, text) for name, _, text in chart.marks]
    assert marks == [("p50", "≈ 45 ms"), ("p95", "≈ 362 ms"), ("p99", "≈ 362 ms")]
    assert chart.marks[0][1] < chart.marks[1][1]
    assert histogram_chart(Histogram()).count == 0
