"""Handlers sync and async: input, output, continuations, and what an attempt knows of itself."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from queuert import Attempt, InProcessWorker, JobStatus, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.errors import ConfigurationError, DefinitionError, DuplicateJobTypeError, UnknownJobTypeError
from queuert.observability.context import FIELDS, ContextFilter, current
from queuert.observability.events import (
    AttemptCompleted,
    AttemptContinued,
    AttemptStarted,
    ChainClosed,
    ChainStarted,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, Order, anything, echo, loop, number, order, relay, text
from tests.support.waiting import WAIT


async def test_a_coroutine_gets_its_model_and_returns_one(harness: PostgresHarness) -> None:
    seen: list[Order] = []

    @harness.processors.handles(order)
    async def handler(attempt: Attempt[Order, Order]) -> Outcome[Order]:
        seen.append(attempt.input)
        return Order(name=attempt.input.name.upper(), lines=[*attempt.input.lines, 3])

    async with harness.worker():
        chain = await harness.client.start_chain(order, Order(name="tea", lines=[1, 2]))
        result = await chain.result(WAIT)
    assert seen == [Order(name="tea", lines=[1, 2])]
    assert result == Order(name="TEA", lines=[1, 2, 3])


async def test_a_plain_function_runs_in_a_thread(harness: PostgresHarness) -> None:
    threads: list[str] = []

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        threads.append(threading.current_thread().name)
        return attempt.input * 2

    async with harness.worker() as worker:
        chains = await harness.client.start_chains([NewChain(number, one) for one in range(5)])
        closed = await harness.client.wait(chains, timeout=WAIT)
        assert [await chain.result() for chain in closed] == [0, 2, 4, 6, 8]
        assert threading.current_thread().name not in threads
        assert all(worker.name in name for name in threads)


async def test_a_callable_object_of_either_mode_is_a_handler(harness: PostgresHarness) -> None:
    class Doubler:
        async def __call__(self, attempt: Attempt[int, int]) -> Outcome[int]:
            return attempt.input * 2

    class Shouter:
        def __call__(self, attempt: Attempt[str, str]) -> Outcome[str]:
            return attempt.input.upper()

    harness.processors.handles(number)(Doubler())
    harness.processors.handles(text)(Shouter())
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 4)).result(WAIT) == 8
        assert await (await harness.client.start_chain(text, "a")).result(WAIT) == "A"


async def test_a_plain_function_may_return_an_awaitable(harness: PostgresHarness) -> None:
    harness.handles(number, lambda attempt: echo(attempt))
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 4)).result(WAIT) == 4


async def test_an_attempt_knows_itself(harness: PostgresHarness) -> None:
    seen: list[dict[str, Any]] = []

    @harness.processors.handles(relay)
    async def begin(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(number, attempt.input + 1, id="next")

    @harness.processors.handles(number)
    async def finish(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append({name: getattr(attempt, name) for name in ("job_id", "chain_id", "type", "chain_type", "number")})
        assert attempt.worker.startswith("worker-")
        assert attempt.abort.reason is None
        assert not attempt.abort
        assert not attempt.worker_stopping
        assert "next" in repr(attempt)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(relay, 1, id="root")
        assert await chain.result(WAIT) == 2
    assert seen == [{"job_id": "next", "chain_id": "root", "type": "number", "chain_type": "relay", "number": 1}]
    first, second = await harness.job("root"), await harness.job("next")
    assert (first.status, first.continued_by, first.output) == (JobStatus.CONTINUED, "next", None)
    assert (second.status, second.chain_index, second.output) == (JobStatus.COMPLETED, 1, 2)


async def test_a_chain_may_loop(harness: PostgresHarness) -> None:
    @harness.processors.handles(loop)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input < 20:
            return attempt.continue_with(loop, attempt.input + 1)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(loop, 0)
        assert await chain.result(WAIT) == 20
    assert harness.rows("select chain_index from queuert.job order by chain_index") == [(one,) for one in range(21)]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_undeclared_continuation_is_a_failed_attempt(harness: PostgresHarness, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        return attempt.continue_with(text, "x")

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        return attempt.continue_with(text, "x")

    harness.handles(relay, in_loop if mode == "coroutine" else in_thread, retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chain = await (await harness.client.start_chain(relay, 1)).wait(WAIT)
    assert chain.error is not None
    assert "declares to continue with 'number', not with 'text'" in chain.error.message
    assert len(harness.rows("select 1 from queuert.job")) == 1


async def test_the_events_of_a_chain_come_in_order(harness: PostgresHarness) -> None:
    @harness.processors.handles(relay)
    async def begin(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(number, attempt.input)

    harness.handles(number, echo)
    worker = harness.worker()
    # Beside a worker that runs, the attempt may begin before the client has the answer to its start.
    chain = await harness.client.start_chain(relay, 1, id="c")
    async with worker:
        await chain.result(WAIT)
        await harness.log.wait_for(ChainClosed)
    wanted = [ChainStarted, WorkerStarted, AttemptStarted, AttemptContinued, AttemptStarted, AttemptCompleted]
    reported = [
        event
        for event in harness.log.events
        if isinstance(event, (*wanted, ChainClosed, WorkerStopping, WorkerStopped))
    ]
    assert [type(event) for event in reported] == [*wanted, ChainClosed, WorkerStopping, WorkerStopped]
    assert {event.chain_id for event in harness.log.of(AttemptStarted)} == {"c"}
    assert [event.attempt for event in harness.log.of(AttemptStarted)] == [1, 1]
    assert {event.worker for event in harness.log.of(AttemptStarted)} == {worker.name}


async def test_handlers_of_both_modes_see_and_log_their_attempt(
    harness: PostgresHarness, caplog: pytest.LogCaptureFixture
) -> None:
    seen: dict[str, Any] = {}
    caplog.handler.addFilter(ContextFilter())
    logger = logging.getLogger("tests.handlers")

    @harness.processors.handles(number)
    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        seen[attempt.job_id] = dict(current())
        logger.warning("in a thread")
        return 1

    @harness.processors.handles(text)
    async def in_loop(attempt: Attempt[str, str]) -> Outcome[str]:
        seen[attempt.job_id] = dict(current())
        logger.warning("in the loop")
        return ""

    async with harness.worker() as worker:
        await (await harness.client.start_chain(number, 1, id="n")).result(WAIT)
        await (await harness.client.start_chain(text, "", id="t")).result(WAIT)
    for one, type in (("n", "number"), ("t", "text")):
        assert seen[one] == dict(zip(FIELDS, (worker.name, one, one, type, 1), strict=True))
    logged = {record.message: record.__dict__ for record in caplog.records if record.name == "tests.handlers"}
    assert logged["in a thread"]["queuert_job_id"] == "n"
    assert logged["in the loop"]["queuert_job_id"] == "t"
    assert current() == {}


async def test_null_is_an_input_and_an_output_like_any_other(harness: PostgresHarness) -> None:
    harness.handles(anything, echo)
    async with harness.worker():
        values: list[Any] = [None, False, 0, "", [], {}, {"a": None}]
        for value in values:
            chain = await harness.client.start_chain(anything, value)
            assert await chain.result(WAIT) == value


# --- definitions ------------------------------------------------------------------------------------------------------


def test_two_handlers_of_one_type_are_refused() -> None:
    processors = Processors(JOB_TYPES)
    processors.handles(number)(echo)
    with pytest.raises(DuplicateJobTypeError, match=r"'number' has the handler tests.support.job_types.echo already"):
        processors.handles(number)(echo)


async def test_two_groups_with_one_type_are_refused(harness: PostgresHarness) -> None:
    one, other = Processors(JOB_TYPES), Processors(JOB_TYPES)
    one.handles(number)(echo)
    other.handles(number)(echo)
    with pytest.raises(DuplicateJobTypeError, match="'number' has two handlers"):
        InProcessWorker(harness.client, [one, other])


def test_a_handler_of_a_type_that_is_not_registered_is_refused() -> None:
    stranger = JobType("stranger", input=int, output=int)
    with pytest.raises(UnknownJobTypeError, match="stranger"):
        Processors(JOB_TYPES).handles(stranger)(echo)
    with pytest.raises(DuplicateJobTypeError):
        Processors(JOB_TYPES).handles(JobType("number", input=int, output=int))(echo)


def test_what_cannot_be_called_is_refused() -> None:
    not_callable: Any = "handler"
    with pytest.raises(DefinitionError, match="must be a function"):
        Processors(JOB_TYPES).handles(number)(not_callable)


def test_a_decorator_without_its_job_type_is_refused() -> None:
    bare: Any = echo
    with pytest.raises(DefinitionError, match=r"use @processors.handles\(job_type\)"):
        Processors(JOB_TYPES).handles(bare)
    with pytest.raises(DefinitionError, match="must be a JobType"):
        Processors(JOB_TYPES).handles_batch(bare, size=2)


def test_processors_of_a_list_are_refused() -> None:
    types: Any = [number]
    with pytest.raises(DefinitionError, match="JobTypes"):
        Processors(types)


@pytest.mark.parametrize("handlers", [echo, [echo], "handlers"])
async def test_a_worker_is_given_processors(harness: PostgresHarness, handlers: Any) -> None:
    with pytest.raises(DefinitionError, match="must be a Processors"):
        InProcessWorker(harness.client, handlers)


def test_a_worker_is_given_a_client() -> None:
    address: Any = "postgresql://localhost/app"
    with pytest.raises(DefinitionError, match=r"client must be .*, got str"):
        InProcessWorker(address, Processors(JOB_TYPES))


async def test_a_worker_without_handlers_is_refused(harness: PostgresHarness) -> None:
    for nothing in (Processors(JOB_TYPES), [], [Processors(JOB_TYPES)]):
        with pytest.raises(DefinitionError, match="at least one handler"):
            InProcessWorker(harness.client, nothing)


async def test_a_handler_of_a_type_that_the_client_does_not_know_is_refused(harness: PostgresHarness) -> None:
    stranger = JobType("stranger", input=int, output=int)
    processors = Processors(JobTypes(stranger))
    processors.handles(stranger)(echo)
    with pytest.raises(DefinitionError, match="stranger"):
        InProcessWorker(harness.client, processors)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b", "a\nb", "a\n"])
async def test_odd_worker_names_are_refused(harness: PostgresHarness, name: str) -> None:
    harness.handles(number, echo)
    with pytest.raises(ConfigurationError, match="worker name"):
        InProcessWorker(harness.client, harness.processors, name=name)


@pytest.mark.parametrize(
    "setting",
    [
        {"concurrency": 0},
        {"shutdown_timeout": -1},
        {"shutdown_timeout": float("nan")},
        {"poll_interval": 0},
        {"max_connections": 1},
    ],
)
async def test_settings_out_of_range_are_refused(harness: PostgresHarness, setting: dict[str, Any]) -> None:
    harness.handles(number, echo)
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        InProcessWorker(harness.client, harness.processors, **setting)


async def test_two_workers_of_one_name_are_two(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker(name="twin") as one, harness.worker(name="twin") as other:
        assert one.name != other.name
        assert one.name.startswith("twin-")
        assert other.name.startswith("twin-")
