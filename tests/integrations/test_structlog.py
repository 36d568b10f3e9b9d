"""structlog: the fields of the attempt in each event of a handler, and Queuert's events as its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.integrations.structlog import StructlogObservability, add_attempt
from queuert.jobs import JobError
from queuert.observability import events
from queuert.observability.context import FIELDS, ContextFilter, bind
from queuert.state.sqlite import SQLiteState
from queuert.testing.async_queue import AsyncJobQueue
from queuert.worker import CallNext
from tests.support.running import UnrunAttempt
from tests.support.waiting import WAIT

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)


@pytest.fixture
def captured() -> Iterator[LogCapture]:
    capture = LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, add_attempt, capture])
    yield capture
    structlog.reset_defaults()


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_each_event_of_a_handler_has_its_attempt_and_nothing_of_others(captured: LogCapture, mode: str) -> None:
    def log(attempt: Attempt[int, int]) -> Outcome[int]:
        structlog.get_logger().info("before", queuert_type="mine")
        structlog.contextvars.bind_contextvars(number=attempt.input)
        structlog.get_logger().info("after")
        return attempt.input

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        return log(attempt)

    processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))
    processors.handles(work)(in_loop if mode == "coroutine" else log)
    async with AsyncJobQueue(SQLiteState(), JOB_TYPES) as queue:
        for number in range(3):
            await queue.client.start_chain(work, number, id=f"job {number}")
        await queue.run_until_idle(processors, concurrency=1)
    before = [entry for entry in captured.entries if entry["event"] == "before"]
    after = [entry for entry in captured.entries if entry["event"] == "after"]
    assert [entry.get("number") for entry in before] == [None] * 3
    assert [(entry["number"], entry["queuert_job_id"]) for entry in after] == [(n, f"job {n}") for n in range(3)]
    assert {entry["queuert_type"] for entry in before} == {"mine"}
    assert all(set(FIELDS) <= set(entry) for entry in after)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_the_end_of_an_attempt_has_what_its_middlewares_have_bound(captured: LogCapture, mode: str) -> None:
    """However it ends, and nothing of the attempts before."""

    async def tenant(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        structlog.contextvars.bind_contextvars(**{f"tenant_{attempt.input}": attempt.number})
        return await call_next()

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 1 and attempt.number == 1:
            raise ValueError
        if attempt.input == 2:
            return attempt.cancel("not wanted")
        return attempt.input

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        return handler(attempt)

    processors = Processors(JOB_TYPES, middlewares=[tenant], retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    processors.handles(work)(in_loop if mode == "coroutine" else handler)
    async with AsyncClient(SQLiteState(), JOB_TYPES, observability=StructlogObservability()) as client:
        chains = [await client.start_chain(work, number) for number in range(3)]
        async with InProcessWorker(client, processors, concurrency=1):
            for chain in chains:
                await chain.wait(WAIT)
    ended = [
        entry
        for entry in captured.entries
        if entry["event"] in ("attempt_completed", "attempt_retried", "attempt_cancelled", "chain_closed")
    ]
    bound = sorted(
        (entry["event"], *sorted((name, value) for name, value in entry.items() if name.startswith("tenant")))
        for entry in ended
    )
    assert bound == [
        ("attempt_cancelled", ("tenant_2", 1)),
        ("attempt_completed", ("tenant_0", 1)),
        ("attempt_completed", ("tenant_1", 2)),
        ("attempt_retried", ("tenant_1", 1)),
        ("chain_closed", ("tenant_0", 1)),
        ("chain_closed", ("tenant_1", 2)),
        ("chain_closed", ("tenant_2", 1)),
    ]


def test_queuerts_events(captured: LogCapture) -> None:
    adapter = StructlogObservability()
    attempt: dict[str, Any] = {"worker": "w", "job_id": "j", "chain_id": "c", "type": "t", "attempt": 2}
    adapter.emit(events.AttemptFailed(**attempt, duration=1.5, error=JobError("handler", "no", "ValueError", "trace")))
    [entry] = captured.entries
    assert (entry["event"], entry["log_level"]) == ("attempt_failed", events.AttemptFailed.level)
    assert (entry["queuert_job_id"], entry["queuert_duration"]) == ("j", 1.5)
    assert (entry["queuert_error_type"], entry["queuert_error_traceback"]) == ("ValueError", "trace")


def test_records_of_the_standard_library_have_it_too() -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[add_attempt], processors=[_dropped, structlog.processors.JSONRenderer()]
    )
    record = logging.makeLogRecord({"msg": "from a process"})
    with bind(UnrunAttempt()):
        ContextFilter().filter(record)
        assert json.loads(formatter.format(logging.makeLogRecord({"msg": "here"})))["queuert_attempt"] == 2
    assert json.loads(formatter.format(record))["queuert_job_id"] == "j"


def test_fields_without_an_attempt_are_left_out() -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), add_attempt],
        processors=[_dropped, structlog.processors.JSONRenderer()],
    )
    record = logging.makeLogRecord({"msg": "started", "queuert_worker": "w", "mine": None})
    ContextFilter().filter(record)
    assert json.loads(formatter.format(record)) == {"event": "started", "queuert_worker": "w", "mine": None}


def _dropped(logger: Any, method: str, event: Any) -> Any:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(logger, method, event)
