"""A request and its response: starts that wait, attach to what runs, and have what is kept at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, Client, Deduplicate, JobStatus, NewChain, RetryPolicy
from queuert.errors import (
    ChainCancelledError,
    ChainNotFoundError,
    ConfigurationError,
    JobFailedError,
    JobIdConflictError,
    WaitTimeoutError,
)
from queuert.notify import Notification, Topic
from queuert.observability.events import AttemptCompleted, AttemptStarted, ChainClosed, ChainStarted
from queuert.policies import Keep, Retention
from tests.behaviours.support import kept
from tests.support.harness import Harness
from tests.support.job_types import JOB_TYPES, anything, echo, number
from tests.support.waiting import WAIT, Gate, in_time, until


async def test_a_start_returns_before_anybody_runs_the_job(harness: Harness) -> None:
    """P03: what is started is durable, and found by another client; the result comes when there is a worker."""
    chain = await harness.client.start_chain(number, 5, id="five")
    assert (await harness.new_client().get_chain("five")).status is ChainStatus.OPEN
    harness.handles(number, echo)
    async with harness.worker():
        assert await chain.result(WAIT) == 5


async def test_a_request_gets_what_the_handler_returns(harness: Harness) -> None:
    """P04, D15: any output sync and async, a large one and null among them."""
    harness.handles(anything, echo)
    outputs: list[Any] = [5, {"a": [1, "é"]}, None, "x" * 1_000_000]
    with Client(harness.state, JOB_TYPES, observability=harness.log) as synchronous:
        async with harness.worker():
            for output in outputs:
                assert await harness.client.start_and_wait(anything, output) == output
                assert await asyncio.to_thread(synchronous.start_and_wait, anything, output) == output


async def test_notifications_carry_ids_and_no_result(harness: Harness) -> None:
    """P06: who waits hears the id of the chain, and reads its result from the store, however large it is."""
    notifications: list[Notification] = []
    expected = {(Topic.JOBS, "anything"), (Topic.CHAINS, "chain-1"), (Topic.CHAINS, "chain-100000")}
    harness.handles(anything, echo)

    def keys() -> set[tuple[Topic, str]]:
        return {(notification.topic, key) for notification in tuple(notifications) for key in notification.keys or ()}

    async with harness.client as client, harness.worker():
        subscriptions = [client.notify.subscribe(topic, notifications.append) for topic in Topic]
        probes = {(topic, "probe") for topic in Topic}

        def listens() -> bool:
            for topic in Topic:
                client.notify.publish(topic, {"probe"})
            return keys() >= probes

        await until(listens, "the subscriptions are in force")
        for size in (1, 100_000):
            await client.start_and_wait(anything, "secret" * size, id=f"chain-{size}")
        await until(lambda: keys() >= expected, "all notifications were heard")
        for subscription in subscriptions:
            subscription.close()
    assert keys() - probes == expected


async def test_no_completion_is_missed(harness: Harness) -> None:
    """P14: many requests at once, notifications alone: nobody looks a second time by himself, and each gets its own."""
    harness.handles(number, echo)
    async with harness.worker(concurrency=4):
        for start in range(0, 60, 20):
            values = range(start, start + 20)
            requested = (harness.client.start_and_wait(number, value, id=f"n{value}") for value in values)
            assert await in_time(asyncio.gather(*requested)) == list(values)


async def test_what_is_kept_is_answered_at_once(harness: Harness) -> None:
    """P07, P09, P21: without a worker, whatever the input: the output as it was, or the error."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    harness.handles(number, handler)
    async with harness.worker():
        assert await harness.client.start_and_wait(number, 5, id="good") == 5
        with pytest.raises(JobFailedError, match="no good"):
            await harness.client.start_and_wait(number, -5, id="bad")
    assert await in_time(harness.client.start_and_wait(number, 6, id="good", timeout=None)) == 5
    with pytest.raises(JobFailedError, match="no good"):
        await in_time(harness.client.start_and_wait(number, 6, id="bad", timeout=None))
    assert len(harness.log.of(ChainStarted)) == 2


async def test_a_duplicate_attaches_to_what_waits_or_runs(harness: Harness) -> None:
    """P08: all who ask get the output of the one attempt."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    chain = await harness.client.start_chain(number, 1, id="a")
    requested = [asyncio.create_task(harness.client.start_and_wait(number, 2, id="a"))]
    async with harness.worker(concurrency=3):
        await gate.next()
        requested += [asyncio.create_task(harness.new_client().start_and_wait(number, 3, id="a")) for _ in range(2)]
        again = await harness.new_client().start_chain(number, 4, id="a", attach=True)
        gate.open()
        assert await in_time(asyncio.gather(*requested)) == [1, 1, 1]
        assert (await again.result(WAIT), await chain.result(WAIT)) == (1, 1)
    assert len(harness.log.of(AttemptCompleted)) == 1


async def test_a_request_that_runs_out_of_time_leaves_the_job(harness: Harness) -> None:
    """P10, P12, D17: it goes on, another who waits for it still hears of its end, and nobody listens on."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    async with harness.worker():
        patient = asyncio.create_task(harness.client.start_and_wait(number, 1, id="a"))
        await gate.next()
        with pytest.raises(WaitTimeoutError) as caught:
            await harness.client.start_and_wait(number, 1, id="a", timeout=0.05)
        assert caught.value.open_ids == ("a",)
        gate.open()
        assert await in_time(patient) == 1


async def test_the_default_timeout_is_thirty_seconds(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10."""
    requested: list[float | None] = []

    class ChainWatcher:
        def __init__(self, *given: Any) -> None:
            requested.append(given[-1])
            raise WaitTimeoutError(["a"], 0.0)

    monkeypatch.setattr("queuert.client.async_client.AsyncChainWatcher", ChainWatcher)
    with pytest.raises(WaitTimeoutError):
        await harness.client.start_and_wait(number, 1)
    assert requested == [30.0]


async def test_an_attempt_that_will_be_tried_again_answers_nobody(harness: Harness) -> None:
    """P11: the last failure does, with its error."""
    numbers = count(1)

    async def handler(attempt: Attempt[int, int]) -> int:
        raise ValueError(f"attempt {next(numbers)}")

    harness.handles(number, handler, retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))
    async with harness.worker():
        with pytest.raises(JobFailedError, match="ValueError: attempt 3") as caught:
            await harness.client.start_and_wait(number, 1)
    job = await harness.client.get_job(caught.value.chain_id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 3)


async def test_who_waits_hears_of_a_job_that_was_taken_over(harness: Harness) -> None:
    """P13: the worker that had it is never heard of again; who waits looks for nothing himself."""
    requested = asyncio.create_task(harness.client.start_and_wait(number, 5, id="a", timeout=WAIT))
    await harness.log.wait_for(ChainStarted)
    await harness.claim_and_die(number)
    harness.handles(number, echo)
    async with harness.worker():
        assert await in_time(requested) == 5
    assert (await harness.client.get_job("a")).attempt == 2


# --- deduplication ----------------------------------------------------------------------------------------------------


async def test_duplicates_are_values(harness: Harness) -> None:
    """P20: started, there and how it stands, or completed and with what; an error only where none is wanted."""
    first = await harness.client.start_chain(number, 5, id="a", attach=True)
    second = await harness.client.start_chain(number, 6, id="a", attach=True)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert (await second.refresh()).status is ChainStatus.OPEN
    assert (await harness.client.get_job("a")).status is JobStatus.READY
    harness.handles(number, echo)
    async with harness.worker():
        await second.wait(WAIT)
    third = await harness.client.start_chain(number, 7, id="a", attach=True)
    assert third.deduplicated
    assert ((await third.refresh()).status, await third.result()) == (ChainStatus.COMPLETED, 5)
    with pytest.raises(JobIdConflictError):
        await harness.client.start_chain(number, 8, id="a")


@pytest.mark.parametrize("by", ["id", "key"])
async def test_one_of_many_at_once_is_started(harness: Harness, by: str) -> None:
    """P22."""
    clients = [harness.new_client() for _ in range(4)]

    async def start(value: int) -> Any:
        client = clients[value % len(clients)]
        if by == "id":
            return await client.start_chain(number, value, id="a", attach=True)
        return await client.start_chain(number, value, deduplication=Deduplicate("a"))

    chains = await asyncio.gather(*map(start, range(32)))
    assert sum(not chain.deduplicated for chain in chains) == 1
    assert len({chain.id for chain in chains}) == 1
    assert len(await harness.client.list_chains()) == 1


async def test_a_failed_one_stands_until_it_expires_or_is_retried(harness: Harness) -> None:
    """P23: by its id. By a key, which counts open chains, it can be started anew at once."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    harness.handles(number, handler)
    options: dict[str, Any] = {"id": "a", "deduplication": Deduplicate("key"), "result_ttl": 3600}
    async with harness.worker():
        failed = await (await harness.client.start_chain(number, -1, **options)).wait(WAIT)
        assert (await harness.client.start_chain(number, 1, id="a", attach=True)).deduplicated
        by_key = await harness.client.start_chain(number, 1, deduplication=Deduplicate("key"))
        assert (by_key.deduplicated, await by_key.result(WAIT)) == (False, 1)
        await harness.client.retry_chain(failed)
        assert (await failed.wait(WAIT)).status is ChainStatus.FAILED
        await harness.client.update_result_ttl([failed], 0.001)
        await _expired(harness, "a")
        assert await harness.client.start_and_wait(number, 2, id="a") == 2


async def test_the_same_id_after_a_cancellation(harness: Harness) -> None:
    """P25, P84, D02: a key is free at once, an id when its chain is deleted; what was cancelled never runs."""
    keyed = await harness.client.start_chain(number, 1, deduplication=Deduplicate("key"))
    named = await harness.client.start_chain(number, 2, id="a")
    assert await harness.client.cancel_chains([keyed, named]) == [True, True]
    again = await harness.client.start_chain(number, 10, deduplication=Deduplicate("key"))
    assert not again.deduplicated
    await harness.client.delete_chain(named)
    assert not (await harness.client.start_chain(number, 20, id="a", attach=True)).deduplicated
    harness.handles(number, echo)
    async with harness.worker():
        assert (await again.result(WAIT), await harness.client.start_and_wait(number, 0, id="a")) == (10, 20)
    assert sorted(event.job_id for event in harness.log.of(AttemptStarted)) == sorted([again.id, "a"])


async def test_an_id_made_of_the_content(harness: Harness) -> None:
    """P27: a hash of the input as the id; ids that are made otherwise are fresh."""

    def content_id(input: Any) -> str:
        return hashlib.sha256(json.dumps(input, sort_keys=True).encode()).hexdigest()[:16]

    inputs: Sequence[Any] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}]
    chains = [await harness.client.start_chain(anything, one, id=content_id(one), attach=True) for one in inputs]
    assert [chain.deduplicated for chain in chains] == [False, True, False]
    fresh = await harness.client.start_chains([NewChain(anything, inputs[0]) for _ in range(2)])
    assert len({chain.id for chain in (*chains, *fresh)}) == 4


# --- how long results are kept ----------------------------------------------------------------------------------------


async def _expired(harness: Harness, id: str) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            try:
                await harness.client.get_chain(id)
            except ChainNotFoundError:
                return
            await asyncio.sleep(0.005)


async def test_each_chain_says_how_long_its_result_and_error_are_kept(harness: Harness) -> None:
    """P16, P17: it was settled at the start, whatever the worker keeps; without an end of its own there is none."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    processors = harness.new_processors(retention=Retention(completed=Keep(age=7200), failed=Keep(age=7200)))
    processors.handles(number)(handler)
    client = harness.client
    async with harness.worker(processors):
        chains = [
            await client.start_chain(number, 1, result_ttl=60),
            await client.start_chain(number, -1, result_ttl=120),
            await client.start_chain(number, 1),
        ]
        assert [kept(chain) for chain in await client.wait(chains, timeout=WAIT)] == [60, 120, None]


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), "60", True])
async def test_a_time_that_makes_no_sense_is_refused(harness: Harness, ttl: Any) -> None:
    """P18: before anything is written."""
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await harness.client.start_chain(number, 1, id="a", result_ttl=ttl)
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await harness.client.start_and_wait(number, 1, id="a", result_ttl=ttl)
    assert len(await harness.client.list_chains()) == 0


async def test_duplicates_do_not_change_how_long_it_is_kept(harness: Harness) -> None:
    """P19: the first start decides, by id and by key."""
    harness.handles(number, echo)
    client = harness.client
    first = await client.start_chain(number, 1, id="a", result_ttl=60, deduplication=Deduplicate("k", scope="any"))
    assert (await client.start_chain(number, 1, id="a", attach=True, result_ttl=600)).deduplicated
    async with harness.worker():
        assert kept(await first.wait(WAIT)) == 60
        assert await client.start_and_wait(number, 2, id="a", result_ttl=600) == 1
        again = await client.start_chain(number, 3, result_ttl=600, deduplication=Deduplicate("k", scope="any"))
    assert (again.deduplicated, kept(await again.refresh())) == (True, 60)


async def test_what_has_expired_is_gone_and_what_is_open_never_expires(harness: Harness) -> None:
    """P24, P33, G06: for reads and for starts alike; then it is asked for anew."""
    runs = count(1)
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.input == 0:
            await gate.pass_through(attempt)
        return next(runs)

    harness.handles(number, handler)
    async with harness.worker(concurrency=2):
        running = await harness.client.start_chain(number, 0, id="running", result_ttl=0.001)
        await gate.next()
        assert await harness.client.start_and_wait(number, 1, id="a", result_ttl=3600) == 1
        await harness.client.update_result_ttl(["a"], 0.001)
        await _expired(harness, "a")
        assert await harness.client.start_and_wait(number, 1, id="a") == 2
        assert (await harness.client.start_chain(number, 0, id="running", attach=True)).deduplicated
        assert (await running.refresh()).status is ChainStatus.OPEN
        gate.open()
        await harness.log.wait_for(ChainClosed, chain_id="running")
        await _expired(harness, "running")


async def test_the_time_is_changed_afterwards(harness: Harness) -> None:
    """P34: of results and of errors; of what is open or is not there it is not."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    harness.handles(number, handler)
    client = harness.client
    async with harness.worker():
        for id, value in (("completed", 1), ("failed", -1)):
            await (await client.start_chain(number, value, id=id)).wait(WAIT)
    await client.start_chain(number, 1, id="open")
    answers = await client.update_result_ttl(["completed", "failed", "open", "missing"], 600)
    assert [answer.value for answer in answers] == ["updated", "updated", "open", "not_found"]
    assert [_about(chain, 600) for chain in await client.get_chains(["completed", "failed"])] == [True, True]
    for nonsense in (0, -1, float("nan")):
        with pytest.raises(ConfigurationError):
            await client.update_result_ttl(["completed"], nonsense)


def _about(chain: Any, seconds: float) -> bool:
    """Whether a chain is kept for this long from some moment after its end."""
    there = kept(chain)
    return there is not None and seconds <= there < seconds + WAIT


# --- how it may end ---------------------------------------------------------------------------------------------------


async def test_every_finish_has_an_error_of_its_own(harness: Harness) -> None:
    """P80: out of time, failed, cancelled, not there; each names its chain, and how it failed is in the chain."""

    async def handler(attempt: Attempt[int, int]) -> int:
        raise ValueError("seven")

    harness.handles(number, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    client = harness.client
    cancelled = await client.start_chain(number, 1)
    await client.cancel_chain(cancelled, reason="not wanted")
    with pytest.raises(ChainCancelledError, match="not wanted"):
        await cancelled.result(WAIT)
    with pytest.raises(WaitTimeoutError):
        await client.start_and_wait(number, 1, id="late", timeout=0.01)
    async with harness.worker():
        with pytest.raises(JobFailedError, match="ValueError: seven"):
            await client.start_and_wait(number, 1, id="late", timeout=WAIT)
    with pytest.raises(ChainNotFoundError):
        await client.get_chain("missing")
    chain, job = await client.get_chain("late"), await client.get_job("late")
    assert chain.error is not None
    assert (chain.error.type, chain.error.message, job.attempt) == ("ValueError", "seven", 2)
