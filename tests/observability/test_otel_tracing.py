"""Traces of starts and attempts, read back through OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import psycopg
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from queuert import (
    AsyncClient,
    Attempt,
    Deduplicate,
    InProcessWorker,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    RecurringSchedule,
    RetryPolicy,
)
from queuert.errors import ChainNotFoundError, ConfigurationError
from queuert.observability import otel_tracing
from queuert.observability.otel_tracing import OTelMiddleware, current_trace_context
from queuert.observability.tracing import AttemptEnd, AttemptSpan, Change, ChangeSpan, Send, SendSpan, TracingMiddleware
from queuert.state import StateAdapter
from queuert.state.sqlite import SQLiteState
from queuert.state.types import ClaimedJob, NewJob
from queuert.testing.async_queue import AsyncJobQueue
from queuert.trace_context import MAX_BYTES, decoded_context
from tests.support.waiting import WAIT, Gate, in_time
from tests.worker import killable

AT_ONCE = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)

last = JobType("last", input=int, output=int)
first = JobType("first", input=int, continues_with=last)
join = JobType("join", input=int, output=int)
child_process = JobType("child_process", input=str, output=str)
JOB_TYPES = JobTypes(first, last, join, child_process)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """A provider of the test's own and what it has recorded."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def all(self, prefix: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]

    def one(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.all() if span.name == name]
        return span


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> dict[int, str]:
    """The ids of the linked spans, with what the links say."""
    return {link.context.span_id: str((link.attributes or {}).get("queuert.link", "")) for link in span.links}


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    id: int = span.context.span_id
    return id


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture(params=["postgres", "sqlite", "redis"])
def state(request: pytest.FixtureRequest) -> StateAdapter:
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        from queuert.state.redis import RedisState

        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState()


@pytest.fixture
async def queue(state: StateAdapter, spans: Spans) -> AsyncIterator[AsyncJobQueue]:
    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with AsyncJobQueue(state, JOB_TYPES, middlewares=middlewares) as queue:
        yield queue


def queue_of(spans: Spans, **options: Any) -> AsyncJobQueue:
    """A queue on SQLite, for what no store changes."""
    middlewares = [OTelMiddleware(tracer_provider=spans.provider, **options)]
    return AsyncJobQueue(SQLiteState(), JOB_TYPES, middlewares=middlewares)


def processors(**handlers: Any) -> Processors:
    """Handlers by job type; those that are not given return their input."""
    found = Processors(JOB_TYPES, retry=AT_ONCE)

    async def echo(attempt: Attempt[Any, Any]) -> Any:
        return attempt.input

    async def go_on(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, attempt.input)

    for job_type in (first, last, join):
        found.handles(job_type)(handlers.get(job_type.name, go_on if job_type is first else echo))
    return found


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "standard"),
    [
        (otel_tracing.SYSTEM, messaging_attributes.MESSAGING_SYSTEM),
        (otel_tracing.OPERATION_NAME, messaging_attributes.MESSAGING_OPERATION_NAME),
        (otel_tracing.OPERATION_TYPE, messaging_attributes.MESSAGING_OPERATION_TYPE),
        (otel_tracing.DESTINATION_NAME, messaging_attributes.MESSAGING_DESTINATION_NAME),
        (otel_tracing.MESSAGE_ID, messaging_attributes.MESSAGING_MESSAGE_ID),
        (otel_tracing.CONVERSATION_ID, messaging_attributes.MESSAGING_MESSAGE_CONVERSATION_ID),
        (otel_tracing.MESSAGE_COUNT, messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT),
        (otel_tracing.ERROR_TYPE, error_attributes.ERROR_TYPE),
    ],
)
def test_names_are_those_of_the_conventions(ours: str, standard: str) -> None:
    assert ours == standard


async def test_every_name_in_the_conventions_namespace_is_theirs(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        await queue.client.start_chains([NewChain(first, 1), NewChain(last, 2)])
        await queue.run_until_idle(processors())
    standard = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    operations = {one.value for one in messaging_attributes.MessagingOperationTypeValues}
    for span in spans.all():
        found = attributes(span)
        assert {name for name in found if name.startswith("messaging.")} <= standard
        assert {name.partition(".")[0] for name in found} <= {"messaging", "queuert", "error"}
        assert found["messaging.operation.type"] in operations
        assert found["messaging.system"] == "queuert"


# --- the picture of a chain -------------------------------------------------------------------------------------------


async def test_a_chain_is_one_picture(queue: AsyncJobQueue, spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")
    with tracer.start_as_current_span("request") as request:
        chain = await queue.client.start_chain(first, 1)
    await queue.run_until_idle(processors())
    send, one, two = spans.one("send first"), spans.one("process first"), spans.one("process last")
    assert parent_id(send) == request.get_span_context().span_id
    assert (send.kind, one.kind, two.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER)
    assert attributes(send) == {
        "messaging.system": "queuert",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "first",
        "messaging.message.id": chain.id,
        "messaging.message.conversation_id": chain.id,
    }
    assert (one.parent, two.parent) == (None, None)
    assert links(one) == {span_id(send): "creator"}
    assert links(two) == {span_id(one): "creator"}
    found = attributes(two)
    assert found["messaging.message.conversation_id"] == chain.id != found["messaging.message.id"]
    assert (found["queuert.attempt"], found["queuert.outcome"]) == (1, "completed")
    assert attributes(one)["queuert.outcome"] == "continued"
    settled = spans.one("settle last")
    assert parent_id(settled) == span_id(two)
    assert settled.kind is SpanKind.CLIENT
    assert attributes(settled)["queuert.outcome"] == "completed"


async def test_a_retry_links_to_its_creator_and_to_the_attempt_before(queue: AsyncJobQueue, spans: Spans) -> None:
    async def fail(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            raise ValueError("not yet")
        return attempt.input

    await queue.client.start_chain(last, 1)
    await queue.run_until_idle(processors(last=fail), allow_failures=True)
    send = spans.one("send last")
    one, two = sorted(spans.all("process last"), key=lambda span: attributes(span)["queuert.attempt"])
    assert links(two) == {span_id(send): "creator", span_id(one): "attempt"}
    assert attributes(one)["queuert.outcome"] == "retried"
    assert attributes(one)["error.type"] == "ValueError"
    assert (one.status.status_code, two.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    [raised] = one.events
    assert (raised.attributes or {})["exception.message"] == "not yet"


async def test_a_join_links_to_the_last_attempt_of_each_blocker(queue: AsyncJobQueue, spans: Spans) -> None:
    blockers = await queue.client.start_chains([NewChain(first, 1), NewChain(last, 2)])
    await queue.run_until_idle(processors())
    await queue.client.start_chain(join, 3, blockers=blockers)
    await queue.run_until_idle(processors())
    ends = {span_id(span) for span in spans.all("process last")}
    found = links(spans.one("process join"))
    assert {id for id, of in found.items() if of == "blocker"} == ends
    assert found[span_id(spans.one("send join"))] == "creator"


async def test_children_of_a_handler(queue: AsyncJobQueue, spans: Spans) -> None:
    async def wait(attempt: Attempt[int, int]) -> Outcome[int]:
        if not attempt.blockers:
            return attempt.wait_for(NewChain(last, 5))
        return attempt.output_of(last)

    await queue.client.start_chain(join, 1)
    await queue.run_until_idle(processors(join=wait))
    waited, done = sorted(spans.all("process join"), key=lambda span: attributes(span)["queuert.attempt"])
    child = spans.one("process last")
    assert links(child) == {span_id(waited): "creator"}
    assert attributes(waited)["queuert.outcome"] == "waiting"
    assert links(done)[span_id(child)] == "blocker"
    assert links(done)[span_id(waited)] == "attempt"


async def test_a_complete_block_settles_inside_its_attempt(dsn: str, spans: Spans) -> None:
    async def complete(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            return tx.finish(7)

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            return tx.finish(8)

    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as queue:
        await queue.client.start_chains([NewChain(last, 1), NewChain(join, 2)])
        await queue.run_until_idle(processors(last=complete, join=in_thread))
    for name in ("last", "join"):
        process, settle = spans.one(f"process {name}"), spans.one(f"settle {name}")
        assert parent_id(settle) == span_id(process)
        assert attributes(process)["queuert.outcome"] == attributes(settle)["queuert.outcome"] == "completed"


async def test_spans_of_handlers_are_children_of_their_attempts(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        with tracer.start_as_current_span("inside loop"):
            return attempt.input

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with tracer.start_as_current_span("inside thread"):
            return attempt.input

    async with queue_of(spans) as queue:
        await queue.client.start_chains([NewChain(last, 1), NewChain(join, 2)])
        await queue.run_until_idle(processors(last=in_loop, join=in_thread), concurrency=1)
    for inside, process in (("inside loop", "process last"), ("inside thread", "process join")):
        assert parent_id(spans.one(inside)) == span_id(spans.one(process))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_child_process_has_the_context_of_its_attempt(dsn: str, spans: Spans) -> None:
    found = Processors(JobTypes(child_process), retry=AT_ONCE)
    found.handles(child_process, executor="process")(killable.current_trace)
    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with AsyncJobQueue(PostgresState(dsn), JobTypes(child_process), middlewares=middlewares) as queue:
        chain = await queue.client.start_chain(child_process, "")
        await queue.run_until_idle(found, timeout=100)
        text = await chain.result(timeout=WAIT)
    process = spans.one("process child_process").context
    assert process is not None
    assert text.split("-")[1:3] == [f"{process.trace_id:032x}", f"{process.span_id:016x}"]


@pytest.mark.parametrize("send_ratio", [1.0, 0.0])
async def test_the_chain_of_a_schedule(dsn: str, spans: Spans, send_ratio: float) -> None:
    done = asyncio.Event()

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        done.set()
        return attempt.input

    middlewares = [OTelMiddleware(tracer_provider=spans.provider, send_ratio=send_ratio)]
    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as queue:
        await queue.client.put_schedules([RecurringSchedule("hourly", last, 1, cron="0 * * * *")])
        await queue.advance(hours=1)
        async with InProcessWorker(queue.client, processors(last=note)):
            await asyncio.wait_for(done.wait(), 20)
    if send_ratio == 0.0:
        assert not spans.all("send last")
        return
    send = spans.one("send last")
    assert attributes(send)["queuert.schedule"] == "hourly"
    assert links(spans.one("process last")) == {span_id(send): "creator"}


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_has_a_send_span_and_a_create_span_a_chain(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        chains = await queue.client.start_chains([NewChain(last, number) for number in range(3)])
        await queue.run_until_idle(processors())
    send, creates = spans.one("send last"), spans.all("create last")
    assert (send.kind, {one.kind for one in creates}) == (SpanKind.CLIENT, {SpanKind.PRODUCER})
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert set(links(send)) == {span_id(one) for one in creates}
    created = {attributes(one)["messaging.message.id"]: span_id(one) for one in creates}
    assert set(created) == {chain.id for chain in chains}
    for process in spans.all("process last"):
        assert links(process) == {created[attributes(process)["messaging.message.id"]]: "creator"}
    assert sum(attributes(one).get("messaging.batch.message_count", 1) for one in spans.all("settle")) == 3


async def test_a_batch_without_create_spans_shares_the_context_of_its_send_span(spans: Spans) -> None:
    async with queue_of(spans, create_spans=False) as queue:
        await queue.client.start_chains([NewChain(first, 1), NewChain(last, 2)])
        await queue.run_until_idle(processors())
    send = spans.one("send")
    assert send.kind is SpanKind.PRODUCER
    assert "messaging.destination.name" not in attributes(send)
    assert links(spans.one("process first")) == {span_id(send): "creator"}
    assert spans.all("create") == []


async def test_a_large_batch_links_to_no_more_than_the_sdk_keeps(dsn: str, spans: Spans) -> None:
    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as queue:
        await queue.client.start_chains([NewChain(last, number) for number in range(600)])
    assert len(links(spans.one("send last"))) == 128
    assert len(spans.all("create last")) == 600


# --- options, and what starts say -------------------------------------------------------------------------------------


async def test_the_first_attempt_can_be_a_child_of_its_creator(spans: Spans) -> None:
    async def fail(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input if attempt.number > 1 else attempt.retry()

    async with queue_of(spans, parent="creator") as queue:
        await queue.client.start_chain(last, 1)
        await queue.run_until_idle(processors(last=fail), allow_failures=True)
    send = spans.one("send last")
    one, two = sorted(spans.all("process last"), key=lambda span: attributes(span)["queuert.attempt"])
    assert parent_id(one) == span_id(send)
    assert two.parent is None


def test_another_parent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="parent must be 'link' or 'creator', got 'none'"):
        OTelMiddleware(parent="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["attempt_ratio", "send_ratio"])
def test_a_ratio_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be from 0 to 1, got 5"):
        OTelMiddleware(**{name: 5})  # type: ignore[arg-type]


def test_a_creator_that_is_not_traced_cannot_be_a_parent() -> None:
    with pytest.raises(ConfigurationError, match=r"send_ratio must be 1 with parent='creator', got 0\.5"):
        OTelMiddleware(parent="creator", send_ratio=0.5)


async def test_a_duplicate_says_so(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        existing = await queue.client.start_chain(last, 1, deduplication=Deduplicate("key"))
        await queue.client.start_chain(last, 1, deduplication=Deduplicate("key"))
    one, two = spans.all("send last")
    assert "queuert.deduplicated" not in attributes(one)
    assert attributes(two)["queuert.deduplicated"] is True
    assert attributes(two)["messaging.message.id"] == existing.id


async def test_a_start_that_fails_is_an_error(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        with pytest.raises(Exception, match="no-such"):
            await queue.client.start_chain(join, 1, blockers=["no-such"])
    send = spans.one("send join")
    assert send.status.status_code is StatusCode.ERROR
    assert attributes(send)["error.type"] == "queuert.errors.ChainNotFoundError"


async def test_a_start_in_a_callers_transaction_says_so(dsn: str, spans: Spans) -> None:
    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as client,
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        await client.start_chain(last, 1, connection=connection)
        await connection.rollback()
    assert attributes(spans.one("send last"))["queuert.in_callers_transaction"] is True


async def test_a_chain_that_a_client_leads_on(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        chain = await queue.client.start_chain(first, 1)
        await queue.client.continue_chain(chain, last, 2)
        await queue.run_until_idle(processors())
    assert links(spans.one("process last")) == {span_id(spans.one("send last")): "creator"}


async def test_chains_that_a_client_completes_cancels_and_retries(queue: AsyncJobQueue, spans: Spans) -> None:
    """Each is a span that links to the newest attempt of the last job, or to what created it."""

    async def fails(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.fail("a test")

    client = queue.client
    completed, cancelled = await client.start_chain(last, 1), await client.start_chain(join, 2)
    await client.complete_chain(completed, 5)
    await client.cancel_chains([cancelled, completed])
    failed = await client.start_chain(first, 3)
    await queue.run_until_idle(processors(first=fails), allow_failures=True)
    await client.retry_chain(failed)

    complete, cancel, retry = spans.one("settle last"), spans.one("settle"), spans.all("settle first")[-1]
    assert links(complete) == {span_id(spans.one("send last")): "job"}
    assert attributes(complete).items() >= {
        "queuert.outcome": "completed", "messaging.operation.type": "settle",
        "messaging.message.id": completed.id, "messaging.message.conversation_id": completed.id,
    }.items()  # fmt: skip
    assert set(links(cancel)) == {span_id(spans.one("send join")), span_id(spans.one("send last"))}
    assert attributes(cancel).items() >= {
        "queuert.outcome": "cancelled", "messaging.batch.message_count": 2, "queuert.unchanged": 1,
    }.items()  # fmt: skip
    assert links(retry) == {span_id(spans.one("process first")): "job"}
    assert attributes(retry)["queuert.outcome"] == "retried"
    assert {span.kind for span in (complete, cancel, retry)} == {SpanKind.CLIENT}


async def test_a_change_in_a_callers_transaction_and_one_that_fails_say_so(dsn: str, spans: Spans) -> None:
    middlewares = [OTelMiddleware(tracer_provider=spans.provider)]
    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES, middlewares=middlewares) as client,
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        chain = await client.start_chain(last, 1)
        await client.cancel_chain(chain, connection=connection)
        await connection.commit()
        with pytest.raises(ChainNotFoundError):
            await client.cancel_chain("no-such")
    inside, failed = spans.one("settle last"), spans.one("settle")
    assert attributes(inside)["queuert.in_callers_transaction"] is True
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "queuert.errors.ChainNotFoundError"


async def test_spans_of_a_change_are_children_of_what_is_current(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")
    async with queue_of(spans) as queue:
        chain = await queue.client.start_chain(last, 1)
        with tracer.start_as_current_span("request"):
            await queue.client.cancel_chain(chain)
    assert parent_id(spans.one("settle last")) == span_id(spans.one("request"))


async def test_a_claim_has_a_span_by_option(spans: Spans) -> None:
    async with queue_of(spans, receive_spans=True) as queue:
        await queue.client.start_chains([NewChain(last, number) for number in range(2)])
        await queue.run_until_idle(processors())
    receive = spans.one("receive last")
    assert set(links(receive)) == {span_id(span) for span in spans.all("create last")}
    assert (receive.parent, receive.kind) == (None, SpanKind.CLIENT)
    assert attributes(receive)["messaging.batch.message_count"] == 2
    assert receive.start_time is not None
    assert receive.end_time is not None
    assert receive.start_time < receive.end_time


async def test_a_claim_has_no_span_by_default(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        await queue.client.start_chain(last, 1)
        await queue.run_until_idle(processors())
    assert spans.all("receive") == []


async def test_an_attempt_whose_finish_the_store_refuses(spans: Spans) -> None:
    async def conflict(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, 1, id="taken")

    async with queue_of(spans) as queue:
        await queue.client.start_chain(join, 1, id="taken")
        await queue.client.start_chain(first, 1)
        await queue.run_until_idle(processors(first=conflict), allow_failures=True)
    refused = [span for span in spans.all("settle first") if span.status.status_code is StatusCode.ERROR]
    assert {attributes(span)["error.type"] for span in refused} == {"queuert.errors.JobIdConflictError"}


async def test_attempts_that_are_settled_together_are_linked_from_one_span(spans: Spans) -> None:
    gate = Gate()

    async def wait(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    async with queue_of(spans) as queue:
        await queue.client.start_chains([NewChain(last, number) for number in range(3)])
        running = asyncio.create_task(queue.run_until_idle(processors(last=wait)))
        for _ in range(3):
            await gate.next()
        gate.open()
        await running
    settle = spans.one("settle last")
    assert set(links(settle)) == {span_id(span) for span in spans.all("process last")}
    assert (settle.parent, attributes(settle)["messaging.batch.message_count"]) == (None, 3)


async def test_a_lease_that_was_lost_is_an_error_of_the_settle_span(spans: Spans) -> None:
    """Nobody tells the worker: it learns of it when the finish is written."""

    async def cancelled(attempt: Attempt[int, int]) -> Outcome[int]:
        await store.cancel_chains([attempt.chain_id], reason="a test")
        return attempt.input

    async with queue_of(spans) as queue:
        store = queue.state.async_store(max_connections=1)
        await store.open()
        await queue.client.start_chain(last, 1)
        await queue.run_until_idle(processors(last=cancelled), allow_failures=True)
        await store.aclose()
    assert attributes(spans.one("settle last"))["error.type"] == "cancelled"


async def test_an_aborted_attempt_says_why(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        client = queue.client

        async def cancelled(attempt: Attempt[int, int]) -> Outcome[int]:
            await client.cancel_chain(attempt.chain_id, reason="a test")
            await in_time(asyncio.Event().wait())
            return attempt.input

        await client.start_chain(last, 1)
        await queue.run_until_idle(processors(last=cancelled), allow_failures=True)
    found = attributes(spans.one("process last"))
    assert (found["queuert.outcome"], found["error.type"]) == ("aborted", "cancelled")


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", ["link", "creator"])
async def test_what_is_not_sampled_leaves_no_spans(parent: Any) -> None:
    """Its decision is stored only for those who take it over."""
    spans = Spans(ALWAYS_OFF)
    contexts = []

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        contexts.append((dict(attempt.trace_context), trace.get_current_span().get_span_context()))
        return attempt.input

    async with queue_of(spans, parent=parent) as queue:
        await queue.client.start_chain(last, 1)
        await queue.run_until_idle(processors(last=note))
    [(stored, current)] = contexts
    if parent == "link":
        assert stored == {}
    else:
        assert stored["traceparent"].endswith(("-00", "-02"))
    assert current.is_valid
    assert not current.trace_flags.sampled
    assert spans.all() == []


async def test_attempts_outside_of_the_ratio_are_not_traced_nor_is_what_they_do() -> None:
    """Their trace has ids, for logs, and the baggage of the start."""
    spans = Spans(ParentBased(ALWAYS_ON))
    seen = []

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        with spans.provider.get_tracer("handler").start_as_current_span("work") as span:
            seen.append((trace.get_current_span().get_span_context(), baggage.get_baggage("tenant")))
            assert not span.is_recording()
        return attempt.input

    async with queue_of(spans, attempt_ratio=0.0) as queue:
        token = context.attach(baggage.set_baggage("tenant", "seven"))
        try:
            await queue.client.start_chain(last, 1)
        finally:
            context.detach(token)
        await queue.client.start_chain(last, 2)
        await queue.run_until_idle(processors(last=note))
    (one, tenant), (other, none) = seen
    assert (tenant, none) == ("seven", None)
    assert one.is_valid
    assert other.is_valid
    assert one.trace_id != other.trace_id
    assert [span.name for span in spans.all()] == ["send last", "send last"]


async def test_a_child_of_its_creator_is_traced_whatever_the_ratio(spans: Spans) -> None:
    async def again(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input if attempt.number > 1 else attempt.retry()

    async with queue_of(spans, parent="creator", attempt_ratio=0.0) as queue:
        await queue.client.start_chain(last, 1)
        await queue.run_until_idle(processors(last=again), allow_failures=True)
    assert [attributes(span)["queuert.attempt"] for span in spans.all("process last")] == [1]


async def test_starts_outside_of_the_ratio_are_not_traced_but_their_attempts_are(spans: Spans) -> None:
    async with queue_of(spans, send_ratio=0.0) as queue:
        await queue.client.start_chain(last, 1)
        await queue.client.start_chains([NewChain(last, 2), NewChain(last, 3)])
        await queue.run_until_idle(processors())
    assert not spans.all("send last")
    attempts = spans.all("process last")
    assert len(attempts) == 3
    assert not any(span.links for span in attempts)


async def test_a_start_within_a_span_or_with_baggage_is_left_to_the_sampler(spans: Spans) -> None:
    async with queue_of(spans, send_ratio=0.0) as queue:
        with spans.provider.get_tracer("caller").start_as_current_span("request") as request:
            await queue.client.start_chain(last, 1)
        token = context.attach(baggage.set_baggage("tenant", "seven"))
        try:
            await queue.client.start_chain(last, 2)
        finally:
            context.detach(token)
    within, with_baggage = spans.all("send last")
    assert parent_id(within) == request.get_span_context().span_id
    assert with_baggage.parent is None


async def test_workers_sample_for_themselves() -> None:
    client_spans, worker_spans = Spans(ALWAYS_OFF), Spans()
    async with queue_of(worker_spans) as queue:
        client = AsyncClient(
            queue.state, JOB_TYPES, middlewares=[OTelMiddleware(tracer_provider=client_spans.provider)]
        )
        async with client:
            await client.start_chain(last, 1)
        await queue.run_until_idle(processors())
    assert attributes(worker_spans.one("process last"))["queuert.outcome"] == "completed"


async def test_baggage_travels(spans: Spans) -> None:
    seen = []

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(baggage.get_baggage("tenant"))
        return attempt.input

    async with queue_of(spans) as queue:
        token = context.attach(baggage.set_baggage("tenant", "seven"))
        try:
            await queue.client.start_chain(last, 1)
        finally:
            context.detach(token)
        await queue.run_until_idle(processors(last=note))
    assert seen == ["seven"]
    assert spans.one("process last").parent is None


async def test_baggage_travels_though_its_start_is_not_sampled(spans: Spans) -> None:
    client_spans = Spans(ALWAYS_OFF)
    seen = []

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(baggage.get_baggage("tenant"))
        return attempt.input

    async with queue_of(spans) as queue:
        middlewares = [OTelMiddleware(tracer_provider=client_spans.provider)]
        async with AsyncClient(queue.state, JOB_TYPES, middlewares=middlewares) as client:
            token = context.attach(baggage.set_baggage("tenant", "seven"))
            try:
                await client.start_chain(last, 1)
            finally:
                context.detach(token)
        await queue.run_until_idle(processors(last=note))
    assert seen == ["seven"]


# --- contexts of strangers --------------------------------------------------------------------------------------------

HOSTILE = [
    None,
    "",
    "garbage",
    "{",
    "[" * 2_000,
    "null",
    '{"traceparent": 7}',
    '{"traceparent": "00-0-0-00"}',
    '{"traceparent": "ff-00000000000000000000000000000000-0000000000000000-ff"}',
    json.dumps({"traceparent": TRACEPARENT, "baggage": "a" * MAX_BYTES}),
    json.dumps({"tracestate": "\n" * 9, "traceparent": "00-\udc80"}),
    json.dumps({str(number): "x" for number in range(99)}),
]


@pytest.mark.parametrize("parent", ["link", "creator"])
@pytest.mark.parametrize("stored", HOSTILE)
async def test_a_broken_context_costs_nothing_but_its_link(spans: Spans, stored: str | None, parent: Any) -> None:
    async with queue_of(spans, parent=parent) as queue:
        store = queue.state.async_store(max_connections=1)
        await store.open()
        await store.start_jobs([NewJob(id="a", type="last", input="1", trace_context=stored)])
        await store.aclose()
        [ran] = await queue.run_until_idle(processors())
    assert ran.outcome == "completed"
    process = spans.one("process last")
    assert (process.parent, links(process)) == (None, {})
    assert attributes(process)["queuert.outcome"] == "completed"


async def test_a_bare_traceparent_is_read(spans: Spans) -> None:
    async with queue_of(spans) as queue:
        store = queue.state.async_store(max_connections=1)
        await store.open()
        await store.start_jobs([NewJob(id="a", type="last", input="1", trace_context=TRACEPARENT)])
        await store.aclose()
        await queue.run_until_idle(processors())
    assert links(spans.one("process last")) == {0xB7AD6B7169203331: "creator"}


def test_the_current_context_as_text(spans: Spans) -> None:
    assert current_trace_context() is None
    with spans.provider.get_tracer("test").start_as_current_span("request") as request:
        stored = current_trace_context()
    id = f"{request.get_span_context().span_id:016x}"
    assert decoded_context(stored)["traceparent"].split("-")[2] == id


# --- broken middlewares -----------------------------------------------------------------------------------------------


class _Broken(TracingMiddleware):
    """Raises in every method of every span."""

    def begin_send(self, send: Send) -> SendSpan:
        return _BrokenSend()

    def begin_attempt(self, job: ClaimedJob, worker: str) -> AttemptSpan:
        return _BrokenAttempt()

    def begin_settle(self, spans: Any, finishes: Any) -> None:
        raise RuntimeError("begin_settle")

    def begin_change(self, change: Change) -> ChangeSpan:
        return _BrokenChange()

    def received(self, jobs: Any, worker: str, seconds: float) -> None:
        raise RuntimeError("received")


class _BrokenChange(ChangeSpan):
    def enter(self) -> None:
        raise RuntimeError("enter")

    def changed(self, results: Any) -> None:
        raise RuntimeError("changed")

    def exit(self, error: BaseException | None) -> None:
        raise RuntimeError("exit")


class _BrokenSend(SendSpan):
    def enter(self) -> None:
        raise RuntimeError("enter")

    def inject(self, job_type: str, job_id: str, carrier: Any) -> None:
        raise RuntimeError("inject")

    def started(self, jobs: Any) -> None:
        raise RuntimeError("started")

    def exit(self, error: BaseException | None) -> None:
        raise RuntimeError("exit")


class _BrokenAttempt(AttemptSpan):
    recorded = True

    def inject(self, carrier: Any) -> None:
        raise RuntimeError("inject")

    def link(self, contexts: Any) -> None:
        raise RuntimeError("link")

    def end(self, end: AttemptEnd) -> None:
        raise RuntimeError("end")


async def test_a_broken_middleware_hurts_neither_jobs_nor_others(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    middlewares = [_Broken(), OTelMiddleware(tracer_provider=spans.provider)]
    async with AsyncJobQueue(SQLiteState(), JOB_TYPES, middlewares=middlewares) as queue:
        with caplog.at_level(logging.ERROR, "queuert.observability"):
            await queue.client.start_chain(first, 1)
            ran = await queue.run_until_idle(processors())
            assert await queue.client.cancel_chain(await queue.client.start_chain(last, 1))
    assert [one.outcome for one in ran] == ["continued", "completed"]
    assert links(spans.one("process first")) == {span_id(spans.one("send first")): "creator"}
    methods = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert len(methods) == len(set(methods))
    assert {"_BrokenAttempt.end", "_BrokenChange.changed", "_Broken.received"} <= set(methods)
