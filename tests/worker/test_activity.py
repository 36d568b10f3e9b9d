"""Workers count what they do by job type and minute, and report it with their heartbeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from queuert import Attempt, NewChain, Outcome
from queuert.activity import BOUNDS, COUNTS, MINUTE, Activity, ActivityReport
from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import AttemptCompleted, JobReaped, StoreCallFailed
from queuert.testing.events import EventLog
from queuert.worker import heartbeat, leases, telemetry
from queuert.worker.heartbeat import Heartbeat, WorkerInfo
from queuert.worker.telemetry import REAPED, ActivityCounter
from queuert.workers import WorkerHeartbeat
from tests.support.harness import PostgresHarness
from tests.support.job_types import anything, echo, number, relay
from tests.support.waiting import WAIT, Gate, in_time, until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for a second, at its end, for its last report: too short for a busy machine."""
    monkeypatch.setattr(leases, "_STOP_TIMEOUT", WAIT)


async def total(harness: PostgresHarness, type: str) -> dict[str, int]:
    """The counts of a type that are not 0, and how many durations there are."""
    found = await harness.client.get_activity([type])
    numbers = {name: sum(getattr(one, name) for one in found) for name in COUNTS}
    numbers["wait"] = sum(one.wait.count for one in found)
    numbers["run"] = sum(one.run.count for one in found)
    return {name: number for name, number in numbers.items() if number}


# --- what is counted --------------------------------------------------------------------------------------------------


async def test_each_outcome_is_counted(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        match attempt.input:
            case "fail":
                return attempt.fail("on purpose")
            case "cancel":
                return attempt.cancel("on purpose")
            case "retry" if attempt.number == 1:
                raise ValueError("once")
            case "wait" if attempt.number == 1:
                return attempt.wait_for(NewChain(number, 1))
        return 1

    async def goes_on(attempt: Attempt[Any, Any]) -> Any:
        return attempt.continue_with(number, 1)

    harness.handles(anything, handler)
    harness.handles(relay, goes_on)
    harness.handles(number, echo)
    async with harness.worker() as worker:
        for input in ("complete", "fail", "cancel", "retry", "wait"):
            await harness.client.start_chain(anything, input)
        chain = await harness.client.start_chain(relay, 1)
        await in_time(chain.result())
        await until(
            lambda: (
                not harness.rows(
                    "select id from queuert.job where status <> all (%s)",
                    ["completed", "failed", "cancelled", "continued"],
                )
            ),
            "all have ended",
        )
    assert await total(harness, "anything") == {
        "started": 7, "completed": 3, "failed": 1, "cancelled": 1, "retried": 1, "waiting": 1, "wait": 7, "run": 7
    }  # fmt: skip
    assert await total(harness, "relay") == {"started": 1, "continued": 1, "wait": 1, "run": 1}
    assert await total(harness, "number") == {"started": 2, "completed": 2, "wait": 2, "run": 2}
    found = await harness.client.get_activity(per_worker=True)
    assert {one.worker for one in found} == {worker.name}


async def test_completions_in_threads_are_counted(harness: PostgresHarness) -> None:
    """A block reports from its thread, many at a time."""

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            return tx.finish(attempt.input)

    harness.handles(number, handler)
    async with harness.worker(concurrency=8):
        chains = [await harness.client.start_chain(number, at) for at in range(50)]
        for chain in chains:
            await in_time(chain.result())
    assert await total(harness, "number") == {"started": 50, "completed": 50, "wait": 50, "run": 50}


async def test_rejected_finishes_and_expired_leases_are_counted(harness: PostgresHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return 1

    await harness.client.start_chain(number, 1, id="lost")
    await harness.claim_and_die(number, seconds=0.001)
    harness.handles(number, handler)
    async with harness.worker(concurrency=2):
        await harness.log.wait_for(JobReaped)
        await gate.next()
        await harness.client.start_chain(number, 1, id="taken")
        await gate.next()
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = 'taken'")
        gate.open()
        await until(lambda: bool(harness.log.of(AttemptCompleted)), "the first is completed")
    found = await total(harness, "number")
    assert (found["reaped"], found["started"], found["completed"], found["rejected"]) == (1, 2, 1, 1)


async def test_a_run_is_in_the_bucket_of_its_duration(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker():
        await in_time((await harness.client.start_chain(number, 1)).result())
    [one] = await harness.client.get_activity()
    [event] = harness.log.of(AttemptCompleted)
    expected = next(at for at, bound in enumerate(BOUNDS) if event.duration < bound)
    assert [at for at, number in enumerate(one.run.buckets) if number] == [expected]


# --- when it is reported ----------------------------------------------------------------------------------------------


async def test_reported_while_the_worker_runs(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    harness.handles(number, echo)
    async with harness.worker():
        await in_time((await harness.client.start_chain(number, 1)).result())
        await until(lambda: harness.rows("select completed from queuert.activity") == [(1,)], "it is reported")
        await in_time((await harness.client.start_chain(number, 1)).result())
        await until(
            lambda: harness.rows("select sum(completed)::int from queuert.activity") == [(2,)], "the next is added"
        )


async def test_a_failing_report_is_sent_again(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in the worker, and all of it is there once the store takes it."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    monkeypatch.setattr(heartbeat, "RETRY_AFTER", 0.01)
    harness.handles(number, echo)
    async with harness.worker():
        harness.rows("alter table queuert.activity rename to elsewhere")
        for _ in range(3):
            failures = len(harness.log.of(StoreCallFailed))
            await in_time((await harness.client.start_chain(number, 1)).result())
            await harness.log.wait_for(StoreCallFailed, operation="record_heartbeat", times=failures + 2)
        harness.rows("alter table queuert.elsewhere rename to activity")
    assert await total(harness, "number") == {"started": 3, "completed": 3, "wait": 3, "run": 3}


class Registry:
    """A store with a clock, which may take a report and lose the answer."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.ahead = 600_000.0
        """The clock of the store, less that of the worker."""
        self.answers = True
        self.reports: list[ActivityReport] = []
        self.removals: list[ActivityReport | None] = []

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None) -> datetime:
        if activity is not None:
            self.reports.append(activity)
        if not self.answers:
            raise StateUnavailableError("no answer")
        return datetime.fromtimestamp(self.now + self.ahead, UTC)

    def remove_worker(self, worker_id: str, activity: ActivityReport | None) -> None:
        self.removals.append(activity)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: registry.now))
    return registry


class Reporter:
    """A heartbeat that is called by hand."""

    def __init__(self, registry: Registry) -> None:
        self.log = EventLog()
        self.counter = ActivityCounter()
        subject = WorkerInfo("me", "name", ("number",), 1, running=lambda: 0, stopping=lambda: False, started_at=0.0)
        self.heartbeat = Heartbeat(subject, observers=Observers((self.log,)), activity=self.counter)
        self._registry: Any = registry

    def beat(self) -> float:
        return self.heartbeat.record_if_due(lambda: self._registry)

    def beat_now(self) -> float:
        self.heartbeat.renew_now()
        return self.beat()

    def stop(self) -> None:
        self.heartbeat.remove(lambda: self._registry)


def counted(report: ActivityReport | None) -> list[tuple[datetime, int]]:
    assert report is not None
    assert {(one.seconds, one.worker) for one in report.minutes} == {(MINUTE, "me")}
    return [(one.begins_at, one.reaped) for one in report.minutes]


def minute_of(registry: Registry) -> datetime:
    at = datetime.fromtimestamp(registry.now + registry.ahead, UTC)
    return at.replace(second=0, microsecond=0)


def test_minutes_are_those_of_the_store(registry: Registry) -> None:
    """It asks to be called at the end of each of them, also between two heartbeats."""
    reporter = Reporter(registry)
    pause = reporter.beat()
    expected = []
    for count in range(1, 21):
        for _ in range(count):
            reporter.counter.count_one("number", REAPED)
        expected.append((minute_of(registry), count))
        registry.now += pause
        assert pause <= heartbeat.INTERVAL
        pause = reporter.beat()
    reporter.stop()
    sums: dict[datetime, int] = {}
    for at, count in expected:
        sums[at] = sums.get(at, 0) + count
    found: dict[datetime, int] = {}
    for report in [*registry.reports, *filter(None, registry.removals)]:
        for at, count in counted(report):
            found[at] = found.get(at, 0) + count
    assert found == sums
    assert len(sums) > 5


def test_a_report_without_an_answer_is_sent_again_as_it_was(registry: Registry) -> None:
    reporter = Reporter(registry)
    reporter.beat()
    registry.answers = False
    for _ in range(3):
        reporter.counter.count_one("number", REAPED)
        registry.now += 1.0
        reporter.beat_now()
    assert [(one.number, counted(one)[0][1]) for one in registry.reports] == [(1, 1)] * 3
    registry.answers = True
    reporter.beat_now()
    reporter.beat_now()
    assert [(one.number, counted(one)[0][1]) for one in registry.reports[3:]] == [(1, 1), (2, 2)]
    reporter.beat_now()
    reporter.stop()
    assert (len(registry.reports), registry.removals) == (5, [None])


def test_the_last_report_goes_with_the_end(registry: Registry) -> None:
    """Behind one that is not confirmed, if there is one."""
    reporter = Reporter(registry)
    reporter.beat()
    reporter.counter.count_one("number", REAPED)
    registry.answers = False
    reporter.beat_now()
    reporter.counter.count_one("number", REAPED)
    reporter.stop()
    assert [one and one.number for one in registry.removals] == [1, 2]


def test_counts_before_the_first_answer_are_kept(registry: Registry) -> None:
    reporter = Reporter(registry)
    registry.answers = False
    reporter.counter.count_one("number", REAPED)
    reporter.beat()
    registry.answers = True
    registry.now += 5.0
    reporter.beat()
    reporter.stop()
    assert (registry.reports, counted(registry.removals[0])) == ([], [(minute_of(registry), 1)])


def test_what_cannot_be_reported_for_long_is_dropped_and_reported(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_PENDING", 3)
    reporter = Reporter(registry)
    reporter.beat()
    registry.answers = False
    for _ in range(6):
        registry.now += 60.0
        reporter.counter.count_one("number", REAPED)
        reporter.beat_now()
    [dropped, again] = [one for one in reporter.log.of(StoreCallFailed) if one.operation == "record_activity"]
    assert "counts of 1 minutes and job types are dropped" in dropped.error
    registry.answers = True
    reporter.beat_now()
    reporter.stop()
    # The report that was under way, and the youngest minutes.
    assert len(counted(registry.reports[-1])) == 1
    assert [at for at, _ in counted(registry.removals[0])] == [
        minute_of(registry) - timedelta(minutes=at) for at in (2, 1, 0)
    ]
    assert again.error == dropped.error


def test_a_clock_that_is_set_back_loses_nothing(registry: Registry) -> None:
    """Minutes come again, with reports of higher numbers, which are added."""
    reporter = Reporter(registry)
    reporter.beat()
    for ahead in (registry.ahead, registry.ahead - 3_600.0, registry.ahead):
        registry.ahead = ahead
        reporter.beat_now()
        reporter.counter.count_one("number", REAPED)
        registry.now += 0.001
        reporter.beat_now()
    assert [one.number for one in registry.reports] == [1, 2, 3]
    assert len({counted(one)[0][0] for one in registry.reports}) == 2


def test_an_empty_counter_reports_nothing() -> None:
    counter = ActivityCounter()
    assert counter.collect(1) == 0
    assert counter.report("me") is None
    assert counter.confirmed() is False
    counter.count_one("number", REAPED)
    assert counter.report("me") is None
    counter.collect(2)
    assert counter.report("me") == ActivityReport(
        1, [Activity(datetime(1970, 1, 1, 0, 2, tzinfo=UTC), MINUTE, "number", "me", reaped=1)]
    )
