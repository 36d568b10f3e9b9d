"""Request and response: start a chain and wait for its output, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, Client
from queuert.client import async_waiting, sync_waiting
from queuert.errors import (
    ChainCancelledError,
    ConfigurationError,
    JobFailedError,
    JobTypeMismatchError,
    WaitTimeoutError,
)
from queuert.notify.adapter import Notification, Subscription, Topic
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptCompleted, AttemptRetried, ChainStarted
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, anything, echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


class Counting(InProcessNotify):
    """Knows how many listen for chains that close, and what was stored when each began to."""

    def __init__(self, look: Callable[[], int]) -> None:
        super().__init__()
        self.listening = 0
        self.begun: list[int] = []
        self._maybe_flush = look

    def subscribe(self, topic: Topic, callback: Callable[[Notification], None]) -> Subscription:
        inner = super().subscribe(topic, callback)
        if topic is not Topic.CHAINS:
            return inner
        self.listening += 1
        self.begun.append(self._maybe_flush())
        return Counted(self, inner)


class Counted:
    """A subscription that tells when it is closed."""

    def __init__(self, notify: Counting, inner: Subscription) -> None:
        self._notify: Counting | None = notify
        self._inner = inner

    def close(self) -> None:
        """Hear no more. Idempotent."""
        if self._notify is not None:
            self._notify.listening -= 1
        self._notify = None
        self._inner.close()


class Requests:
    """A client of one mode, and how many of its requests still listen."""

    def __init__(self, harness: PostgresHarness, mode: str) -> None:
        self.notify = Counting(lambda: harness.one("select count(*) from queuert.job"))
        self.client: AsyncClient | Client
        kind = AsyncClient if mode == "async" else Client
        self.client = kind(harness.state, JOB_TYPES, notify=self.notify, observability=harness.log, max_connections=30)
        harness.client = AsyncClient(harness.state, JOB_TYPES, notify=self.notify, observability=harness.log)

    async def __call__(self, job_type: Any, input: Any, **options: Any) -> Any:
        """Ask, and get the answer."""
        if isinstance(self.client, AsyncClient):
            return await self.client.start_and_wait(job_type, input, **options)
        client = self.client
        return await asyncio.to_thread(lambda: client.start_and_wait(job_type, input, **options))

    async def close(self) -> None:
        """Close the client."""
        if isinstance(self.client, AsyncClient):
            await self.client.aclose()
        else:
            self.client.close()


@pytest.fixture(params=["async", "sync"])
async def ask(harness: PostgresHarness, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes requests in one mode, woken by notifications alone; afterwards nobody listens any more, however they
    ended."""
    for module in (async_waiting, sync_waiting):
        monkeypatch.setattr(module, "POLL_WITH_NOTIFY", 3_600.0)
    await harness.client.aclose()
    requests = Requests(harness, request.param)
    yield requests
    assert requests.notify.listening == 0
    await requests.close()


async def test_the_output(harness: PostgresHarness, ask: Requests) -> None:
    """Any output, null among them."""
    harness.handles(anything, echo)
    async with harness.worker():
        for value in (5, "text", {"a": [1]}, None, "x" * 1_000_000):
            assert await ask(anything, value) == value


async def test_it_listens_before_it_starts(harness: PostgresHarness, ask: Requests) -> None:
    harness.handles(number, echo)
    async with harness.worker():
        assert await ask(number, 1) == 1
        assert await ask(number, 2) == 2
    assert ask.notify.begun == [0, 1]


async def test_many_at_once(harness: PostgresHarness, ask: Requests) -> None:
    """Each gets its own answer."""
    harness.handles(number, echo)
    async with harness.worker(concurrency=5):
        values = range(20)
        assert await asyncio.gather(*(ask(number, value, id=f"n{value}") for value in values)) == list(values)


async def test_one_id_many_times(harness: PostgresHarness, ask: Requests) -> None:
    """Those who ask while the first is waiting or running get its answer; one attempt runs."""
    gate = Gate()

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    waiting = [asyncio.create_task(ask(number, value, id="a")) for value in (1, 1)]
    await until(lambda: ask.notify.listening == 2, "two ask before it runs")
    async with harness.worker(concurrency=3):
        await gate.next()
        waiting += [asyncio.create_task(ask(number, 7, id="a")) for _ in range(3)]
        await until(lambda: ask.notify.listening == 5, "three ask while it runs")
        gate.open()
        assert await in_time(asyncio.gather(*waiting)) == [1] * 5
    assert len(harness.log.of(AttemptCompleted)) == len(harness.log.of(ChainStarted)) == 1


async def test_one_that_gives_up_does_not_silence_another(harness: PostgresHarness, ask: Requests) -> None:
    """Two wait for one chain; the first runs out of time, the second still hears of the end."""
    gate = Gate()

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        await gate.pass_through(attempt)
        return 5

    harness.handles(number, handler)
    async with harness.worker():
        second = asyncio.create_task(ask(number, 1, id="a"))
        await gate.next()
        with pytest.raises(WaitTimeoutError) as caught:
            await ask(number, 1, id="a", timeout=0.05)
        assert caught.value.open_ids == ("a",)
        gate.open()
        assert await in_time(second) == 5


async def test_a_closed_one_answers_at_once(harness: PostgresHarness, ask: Requests) -> None:
    """Without a worker, whatever the input: the output as it was, or the error."""

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    harness.handles(number, handler)
    async with harness.worker():
        assert await ask(number, 5, id="good") == 5
        with pytest.raises(JobFailedError, match="no good"):
            await ask(number, -5, id="bad")
    assert await ask(number, 6, id="good") == 5
    with pytest.raises(JobFailedError, match="no good"):
        await ask(number, 6, id="bad")
    chain = await harness.client.start_chain(number, 1, id="unwanted")
    await harness.client.cancel_chain(chain, reason="unwanted")
    with pytest.raises(ChainCancelledError, match="unwanted"):
        await ask(number, 1, id="unwanted")
    assert len(harness.log.of(ChainStarted)) == 3


async def test_attempts_between_do_not_count_as_an_answer(harness: PostgresHarness, ask: Requests) -> None:
    numbers = count(1)

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        if next(numbers) < 3:
            raise ValueError("not yet")
        return attempt.number

    harness.handles(number, handler)
    async with harness.worker():
        assert await ask(number, 1) == 3
    assert len(harness.log.of(AttemptRetried)) == 2


async def test_the_job_goes_on_after_a_timeout(harness: PostgresHarness, ask: Requests) -> None:
    harness.handles(number, echo)
    with pytest.raises(WaitTimeoutError) as caught:
        await ask(number, 5, timeout=0.01)
    [id] = caught.value.open_ids
    async with harness.worker():
        assert await (await harness.client.get_chain(id)).result(WAIT) == 5


async def test_what_has_expired_is_requested_for_anew(harness: PostgresHarness, ask: Requests) -> None:
    """An answer is never older than it may be: the handler runs again."""
    numbers = count(1)

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return next(numbers)

    def expired() -> bool:
        # Or gone by now: the worker deletes what has expired.
        return harness.rows("select 1 from queuert.job where id = 'a' and expires_at > clock_timestamp()") == []

    harness.handles(number, handler)
    async with harness.worker():
        assert await ask(number, 1, id="a", result_ttl=3_600) == 1
        assert await ask(number, 1, id="a", result_ttl=0.001) == 1
        # The first one's TTL stands, whatever the second one said.
        await harness.client.update_result_ttl(["a"], 0.001)
        await until(expired, "it has expired")
        assert await ask(number, 1, id="a", result_ttl=100) == 2
        chain = await harness.client.get_chain("a")
    assert chain.expires_at is not None
    assert chain.closed_at is not None
    # Not the hour that the first one asked for; the store reads its clock for each of the two times.
    assert abs((chain.expires_at - chain.closed_at).total_seconds() - 100) < WAIT


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "60", True, 1e12])
async def test_ttls_that_are_refused(harness: PostgresHarness, ask: Requests, ttl: Any) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await ask(number, 1, result_ttl=ttl)
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await harness.client.update_result_ttl(["a"], ttl)
    assert harness.log.of(ChainStarted) == []


async def test_starts_that_are_refused(harness: PostgresHarness, ask: Requests) -> None:
    """Nobody listens on after one."""
    await harness.client.start_chain(text, "a", id="a")
    with pytest.raises(JobTypeMismatchError):
        await ask(number, 1, id="a")
    assert ask.notify.listening == 0


async def test_who_is_cancelled_does_not_listen_on(harness: PostgresHarness) -> None:
    await harness.client.aclose()
    ask = Requests(harness, "async")
    task = asyncio.create_task(ask(number, 1, timeout=None))
    await until(lambda: bool(harness.log.of(ChainStarted)), "it has started")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ask.notify.listening == 0
    await ask.close()
