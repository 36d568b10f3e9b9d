"""Sentry, with a transport in memory: what of attempts, starts and schedules is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from opentelemetry.sdk.trace import TracerProvider
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from queuert import Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors, RetryPolicy
from queuert.errors import ConfigurationError, RetryLater
from queuert.integrations.sentry import AttemptFailedError, SentryMiddleware
from queuert.observability.otel_tracing import OTelMiddleware
from queuert.schedules import RecurringSchedule
from queuert.state.sqlite import SQLiteState
from queuert.testing.async_queue import AsyncJobQueue

last = JobType("last", input=int, output=int)
first = JobType("first", input=int, continues_with=last)
JOB_TYPES = JobTypes(first, last)
TWICE = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)


class Sent(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            payload = item.payload.json
            if payload is not None:
                self.items.append((item.type or "", payload))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for one, payload in self.items if one == kind]


@pytest.fixture
def sent() -> Iterator[Sent]:
    transport = Sent()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=transport, traces_sample_rate=1.0)
        yield transport
        sentry_sdk.get_client().close()
        sentry_sdk.init()


def queue(**options: Any) -> AsyncJobQueue:
    return AsyncJobQueue(SQLiteState(), JOB_TYPES, middlewares=[SentryMiddleware(**options)])


def processors(handler: Any) -> Processors:
    found = Processors(JOB_TYPES, retry=TWICE)
    found.handles(last)(handler)

    @found.handles(first)
    async def go_on(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, attempt.input)

    return found


async def echo(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.input


async def broken(attempt: Attempt[int, int]) -> Outcome[int]:
    raise LookupError("no such thing")


async def test_a_chain_is_one_trace_of_a_span_and_transactions(sent: Sent) -> None:
    async with queue() as jobs:
        with sentry_sdk.start_transaction(name="request"):
            chain = await jobs.client.start_chain(first, 1)
        await jobs.run_until_idle(processors(echo))
    request, one, two = sent.of("transaction")
    [span] = request["spans"]
    assert (span["op"], span["description"], span["origin"]) == ("queue.submit.queuert", "first", "auto.queue.queuert")
    assert span["data"]["messaging.message.id"] == chain.id
    traces = [each["contexts"]["trace"] for each in (request, one, two)]
    assert len({trace["trace_id"] for trace in traces}) == 1
    assert traces[1]["parent_span_id"] == span["span_id"]
    assert traces[2]["parent_span_id"] == traces[1]["span_id"]
    assert [(trace["op"], trace["status"]) for trace in traces[1:]] == [("queue.task.queuert", "ok")] * 2
    assert two["transaction"] == "last"
    assert two["tags"]["queuert_chain_id"] == chain.id
    data = traces[2]["data"]
    assert (data["messaging.message.retry.count"], data["messaging.destination.name"]) == (0, "last")
    assert data["messaging.message.receive.latency"] >= 0


async def test_an_error_is_captured_once_an_attempt_by_finality(sent: Sent) -> None:
    async with queue() as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(processors(broken), allow_failures=True)
    events = sent.of("event")
    assert [event["level"] for event in events] == ["warning", "error"]
    for event in events:
        [exception] = event["exception"]["values"]
        assert (exception["type"], exception["value"]) == ("LookupError", "no such thing")
        assert exception["stacktrace"]["frames"][-1]["function"] == "broken"
        assert event["fingerprint"] == ["queuert", "last", "LookupError"]
    assert [event["tags"]["queuert_attempt"] for event in events] == ["1", "2"]
    assert [each["contexts"]["trace"]["status"] for each in sent.of("transaction")] == ["internal_error"] * 2


async def test_errors_of_plain_functions(sent: Sent) -> None:
    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        sentry_sdk.set_tag("from", "thread")
        raise LookupError("no such thing")

    async with queue(retries=None) as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(processors(in_thread), allow_failures=True)
    [event] = sent.of("event")
    assert (event["level"], event["tags"]["queuert_attempt"], event["tags"]["from"]) == ("error", "2", "thread")
    assert "from" not in sentry_sdk.get_isolation_scope()._tags


async def test_failures_without_an_exception_are_exceptions(sent: Sent) -> None:
    async def give_up(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.fail("nobody wants it")

    async with queue() as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(processors(give_up), allow_failures=True)
    [event] = sent.of("event")
    [exception] = event["exception"]["values"]
    assert exception["type"] == AttemptFailedError.__name__
    assert "nobody wants it" in exception["value"]
    assert event["fingerprint"] == ["queuert", "last", "fail"]


async def test_a_timeout_is_an_exception_of_its_own(sent: Sent) -> None:
    found = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))

    @found.handles(last, timeout=timedelta(milliseconds=1))
    async def hang(attempt: Attempt[int, int]) -> Outcome[int]:
        await asyncio.Event().wait()
        return 1

    async with queue() as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(found, allow_failures=True)
    [event] = sent.of("event")
    assert event["fingerprint"] == ["queuert", "last", "timeout"]


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_retry_that_the_handler_wants_is_no_error(sent: Sent, how: str) -> None:
    async def later(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number > 1:
            return attempt.input
        if how == "returned":
            return attempt.retry()
        raise RetryLater(after=0.0)

    async with queue() as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(processors(later), allow_failures=True)
    assert sent.of("event") == []


async def test_a_finish_that_the_store_refuses_is_captured(sent: Sent) -> None:
    found = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))
    found.handles(last)(echo)

    @found.handles(first)
    async def conflict(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, 1, id="taken")

    async with queue() as jobs:
        await jobs.client.start_chain(last, 1, id="taken")
        await jobs.client.start_chain(first, 1)
        await jobs.run_until_idle(found, allow_failures=True)
    [event] = sent.of("event")
    assert event["fingerprint"] == ["queuert", "first", "JobIdConflictError"]


async def test_scopes_do_not_leak_into_the_next_attempt(sent: Sent) -> None:
    seen = []

    async def tag(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(dict(sentry_sdk.get_isolation_scope()._tags).get("mine"))
        sentry_sdk.set_tag("mine", attempt.input)
        return attempt.input

    async with queue() as jobs:
        for number in range(3):
            await jobs.client.start_chain(last, number)
        await jobs.run_until_idle(processors(tag), concurrency=1)
    assert seen == [None] * 3


async def test_beside_opentelemetry_both_contexts_are_stored(sent: Sent) -> None:
    seen: list[dict[str, str]] = []

    async def note(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(dict(attempt.trace_context))
        return attempt.input

    provider = TracerProvider()
    middlewares = [OTelMiddleware(tracer_provider=provider), SentryMiddleware()]
    async with AsyncJobQueue(SQLiteState(), JOB_TYPES, middlewares=middlewares) as jobs:
        await jobs.client.start_chain(last, 1)
        await jobs.run_until_idle(processors(note))
    provider.shutdown()
    [stored] = seen
    assert {"traceparent", "sentry-trace"} <= set(stored)


@pytest.mark.parametrize(("handler", "status"), [(echo, "ok"), (broken, "error")])
async def test_ticks_of_schedules_are_check_ins(sent: Sent, dsn: str, handler: Any, status: str) -> None:
    done = asyncio.Event()

    async def observed(attempt: Attempt[int, int]) -> Outcome[int]:
        if handler is echo or attempt.number == 2:
            done.set()
        outcome: Outcome[int] = await handler(attempt)
        return outcome

    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES, middlewares=[SentryMiddleware()]) as jobs:
        await jobs.client.put_schedules([RecurringSchedule("Hourly job", last, 1, cron="0 * * * *")])
        await jobs.advance(hours=1)
        async with InProcessWorker(jobs.client, processors(observed)):
            await asyncio.wait_for(done.wait(), 20)
        [fired] = await jobs.jobs()
    begun, ended = sent.of("check_in")
    assert (begun["status"], ended["status"]) == ("in_progress", status)
    assert begun["monitor_slug"] == ended["monitor_slug"] == "hourly-job"
    assert begun["check_in_id"] == ended["check_in_id"]
    assert begun["monitor_config"] == {"schedule": {"type": "crontab", "value": "0 * * * *"}, "timezone": "UTC"}
    assert ended.get("duration") is None
    assert fired.id.startswith("Hourly job@")


def test_another_level_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="retries must be"):
        SentryMiddleware(retries="loud")  # type: ignore[arg-type]
