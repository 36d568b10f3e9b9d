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
from tests.acceptance.support import JOB_TYPES, WAIT, Gate, Ground, anything, echo, in_time, kept, number, until


async def test_a_start_returns_before_anybody_runs_the_job(ground: Ground) -> None:
    """P03: what is started is durable, and found by another client; the result comes when there is a worker."""
    chain = await ground.client.start_chain(number, 5, id="five")
    assert (await ground.new_client().get_chain("five")).status is ChainStatus.OPEN
    ground.handles(number, echo)
    async with ground.worker():
        assert await chain.result(WAIT) == 5


async def test_a_request_gets_what_the_handler_returns(ground: Ground) -> None:
    """P04, D15: any output sync and async, a large one and null among them."""
    ground.handles(anything, echo)
    outputs: list[Any] = [5, {"a": [1, "é"]}, None, "x" * 1_000_000]
    with Client(ground.state, JOB_TYPES, observability=ground.log) as synchronous:
        async with ground.worker():
            for output in outputs:
                assert await ground.client.start_and_wait(anything, output) == output
                assert await asyncio.to_thread(synchronous.start_and_wait, anything, output) == output


async def test_notifications_carry_ids_and_no_result(ground: Ground) -> None:
    """P06: who waits hears the id of the chain, and reads its result from the store, however large it is."""
    notifications: list[Notification] = []
    expected = {(Topic.JOBS, "anything"), (Topic.CHAINS, "chain-1"), (Topic.CHAINS, "chain-100000")}
    ground.handles(anything, echo)

    def keys() -> set[tuple[Topic, str]]:
        return {(notification.topic, key) for notification in tuple(notifications) for key in notification.keys or ()}

    async with ground.client as client, ground.worker():
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


async def test_no_completion_is_missed(ground: Ground) -> None:
    """P14: many requests at once, notifications alone: nobody looks a second time by himself, and each gets its own."""
    ground.handles(number, echo)
    async with ground.worker(concurrency=4):
        for start in range(0, 60, 20):
            values = range(start, start + 20)
            requested = (ground.client.start_and_wait(number, value, id=f"n{value}") for value in values)
            assert await in_time(asyncio.gather(*requested)) == list(values)


async def test_what_is_kept_is_answered_at_once(ground: Ground) -> None:
    """P07, P09, P21: without a worker, whatever the input: the output as it was, or the error."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    ground.handles(number, handler)
    async with ground.worker():
        assert await ground.client.start_and_wait(number, 5, id="good") == 5
        with pytest.raises(JobFailedError, match="no good"):
            await ground.client.start_and_wait(number, -5, id="bad")
    assert await in_time(ground.client.start_and_wait(number, 6, id="good", timeout=None)) == 5
    with pytest.raises(JobFailedError, match="no good"):
        await in_time(ground.client.start_and_wait(number, 6, id="bad", timeout=None))
    assert len(ground.log.of(ChainStarted)) == 2


async def test_a_duplicate_attaches_to_what_waits_or_runs(ground: Ground) -> None:
    """P08: all who ask get the output of the one attempt."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    ground.handles(number, handler)
    chain = await ground.client.start_chain(number, 1, id="a")
    requested = [asyncio.create_task(ground.client.start_and_wait(number, 2, id="a"))]
    async with ground.worker(concurrency=3):
        await gate.next()
        requested += [asyncio.create_task(ground.new_client().start_and_wait(number, 3, id="a")) for _ in range(2)]
        again = await ground.new_client().start_chain(number, 4, id="a", attach=True)
        gate.open()
        assert await in_time(asyncio.gather(*requested)) == [1, 1, 1]
        assert (await again.result(WAIT), await chain.result(WAIT)) == (1, 1)
    assert len(ground.log.of(AttemptCompleted)) == 1


async def test_a_request_that_runs_out_of_time_leaves_the_job(ground: Ground) -> None:
    """P10, P12, D17: it goes on, another who waits for it still hears of its end, and nobody listens on."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    ground.handles(number, handler)
    async with ground.worker():
        patient = asyncio.create_task(ground.client.start_and_wait(number, 1, id="a"))
        await gate.next()
        with pytest.raises(WaitTimeoutError) as caught:
            await ground.client.start_and_wait(number, 1, id="a", timeout=0.05)
        assert caught.value.open_ids == ("a",)
        gate.open()
        assert await in_time(patient) == 1


async def test_the_default_timeout_is_thirty_seconds(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10."""
    requested: list[float | None] = []

    class ChainWatcher:
        def __init__(self, *given: Any) -> None:
            requested.append(given[-1])
            raise WaitTimeoutError(["a"], 0.0)

    monkeypatch.setattr("queuert.client.async_client.AsyncChainWatcher", ChainWatcher)
    with pytest.raises(WaitTimeoutError):
        await ground.client.start_and_wait(number, 1)
    assert requested == [30.0]


async def test_an_attempt_that_will_be_tried_again_answers_nobody(ground: Ground) -> None:
    """P11: the last failure does, with its error."""
    numbers = count(1)

    async def handler(attempt: Attempt[int, int]) -> int:
        raise ValueError(f"attempt {next(numbers)}")

    ground.handles(number, handler, retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))
    async with ground.worker():
        with pytest.raises(JobFailedError, match="ValueError: attempt 3") as caught:
            await ground.client.start_and_wait(number, 1)
    job = await ground.client.get_job(caught.value.chain_id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 3)


async def test_who_waits_hears_of_a_job_that_was_taken_over(ground: Ground) -> None:
    """P13: the worker that had it is never heard of again; who waits looks for nothing himself."""
    requested = asyncio.create_task(ground.client.start_and_wait(number, 5, id="a", timeout=WAIT))
    await ground.log.wait_for(ChainStarted)
    await ground.claimed_by_the_dead(number)
    ground.handles(number, echo)
    async with ground.worker():
        assert await in_time(requested) == 5
    assert (await ground.client.get_job("a")).attempt == 2


# --- deduplication ----------------------------------------------------------------------------------------------------


async def test_duplicates_are_values(ground: Ground) -> None:
    """P20: started, there and how it stands, or completed and with what; an error only where none is wanted."""
    first = await ground.client.start_chain(number, 5, id="a", attach=True)
    second = await ground.client.start_chain(number, 6, id="a", attach=True)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert (await second.refresh()).status is ChainStatus.OPEN
    assert (await ground.client.get_job("a")).status is JobStatus.READY
    ground.handles(number, echo)
    async with ground.worker():
        await second.wait(WAIT)
    third = await ground.client.start_chain(number, 7, id="a", attach=True)
    assert third.deduplicated
    assert ((await third.refresh()).status, await third.result()) == (ChainStatus.COMPLETED, 5)
    with pytest.raises(JobIdConflictError):
        await ground.client.start_chain(number, 8, id="a")


@pytest.mark.parametrize("by", ["id", "key"])
async def test_one_of_many_at_once_is_started(ground: Ground, by: str) -> None:
    """P22."""
    clients = [ground.new_client() for _ in range(4)]

    async def start(value: int) -> Any:
        client = clients[value % len(clients)]
        if by == "id":
            return await client.start_chain(number, value, id="a", attach=True)
        return await client.start_chain(number, value, deduplication=Deduplicate("a"))

    chains = await asyncio.gather(*map(start, range(32)))
    assert sum(not chain.deduplicated for chain in chains) == 1
    assert len({chain.id for chain in chains}) == 1
    assert len(await ground.client.list_chains()) == 1


async def test_a_failed_one_stands_until_it_expires_or_is_retried(ground: Ground) -> None:
    """P23: by its id. By a key, which counts open chains, it can be started anew at once."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    ground.handles(number, handler)
    options: dict[str, Any] = {"id": "a", "deduplication": Deduplicate("key"), "result_ttl": 3600}
    async with ground.worker():
        failed = await (await ground.client.start_chain(number, -1, **options)).wait(WAIT)
        assert (await ground.client.start_chain(number, 1, id="a", attach=True)).deduplicated
        by_key = await ground.client.start_chain(number, 1, deduplication=Deduplicate("key"))
        assert (by_key.deduplicated, await by_key.result(WAIT)) == (False, 1)
        await ground.client.retry_chain(failed)
        assert (await failed.wait(WAIT)).status is ChainStatus.FAILED
        await ground.client.update_result_ttl([failed], 0.001)
        await _expired(ground, "a")
        assert await ground.client.start_and_wait(number, 2, id="a") == 2


async def test_the_same_id_after_a_cancellation(ground: Ground) -> None:
    """P25, P84, D02: a key is free at once, an id when its chain is deleted; what was cancelled never runs."""
    keyed = await ground.client.start_chain(number, 1, deduplication=Deduplicate("key"))
    named = await ground.client.start_chain(number, 2, id="a")
    assert await ground.client.cancel_chains([keyed, named]) == [True, True]
    again = await ground.client.start_chain(number, 10, deduplication=Deduplicate("key"))
    assert not again.deduplicated
    await ground.client.delete_chain(named)
    assert not (await ground.client.start_chain(number, 20, id="a", attach=True)).deduplicated
    ground.handles(number, echo)
    async with ground.worker():
        assert (await again.result(WAIT), await ground.client.start_and_wait(number, 0, id="a")) == (10, 20)
    assert sorted(event.job_id for event in ground.log.of(AttemptStarted)) == sorted([again.id, "a"])


async def test_an_id_made_of_the_content(ground: Ground) -> None:
    """P27: a hash of the input as the id; ids that are made otherwise are fresh."""

    def content_id(input: Any) -> str:
        return hashlib.sha256(json.dumps(input, sort_keys=True).encode()).hexdigest()[:16]

    inputs: Sequence[Any] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}]
    chains = [await ground.client.start_chain(anything, one, id=content_id(one), attach=True) for one in inputs]
    assert [chain.deduplicated for chain in chains] == [False, True, False]
    fresh = await ground.client.start_chains([NewChain(anything, inputs[0]) for _ in range(2)])
    assert len({chain.id for chain in (*chains, *fresh)}) == 4


# --- how long results are kept ----------------------------------------------------------------------------------------


async def _expired(ground: Ground, id: str) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            try:
                await ground.client.get_chain(id)
            except ChainNotFoundError:
                return
            await asyncio.sleep(0.005)


async def test_each_chain_says_how_long_its_result_and_error_are_kept(ground: Ground) -> None:
    """P16, P17: it was settled at the start, whatever the worker keeps; without an end of its own there is none."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    processors = ground.group(retention=Retention(completed=Keep(age=7200), failed=Keep(age=7200)))
    processors.handles(number)(handler)
    client = ground.client
    async with ground.worker(processors):
        chains = [
            await client.start_chain(number, 1, result_ttl=60),
            await client.start_chain(number, -1, result_ttl=120),
            await client.start_chain(number, 1),
        ]
        assert [kept(chain) for chain in await client.wait(chains, timeout=WAIT)] == [60, 120, None]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "60", True])
async def test_a_time_that_makes_no_sense_is_refused(ground: Ground, ttl: Any) -> None:
    """P18: before anything is written."""
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await ground.client.start_chain(number, 1, id="a", result_ttl=ttl)
    with pytest.raises(ConfigurationError, match="result_ttl"):
        await ground.client.start_and_wait(number, 1, id="a", result_ttl=ttl)
    assert len(await ground.client.list_chains()) == 0


async def test_duplicates_do_not_change_how_long_it_is_kept(ground: Ground) -> None:
    """P19: the first start decides, by id and by key."""
    ground.handles(number, echo)
    client = ground.client
    first = await client.start_chain(number, 1, id="a", result_ttl=60, deduplication=Deduplicate("k", scope="any"))
    assert (await client.start_chain(number, 1, id="a", attach=True, result_ttl=600)).deduplicated
    async with ground.worker():
        assert kept(await first.wait(WAIT)) == 60
        assert await client.start_and_wait(number, 2, id="a", result_ttl=600) == 1
        again = await client.start_chain(number, 3, result_ttl=600, deduplication=Deduplicate("k", scope="any"))
    assert (again.deduplicated, kept(await again.refresh())) == (True, 60)


async def test_what_has_expired_is_gone_and_what_is_open_never_expires(ground: Ground) -> None:
    """P24, P33, G06: for reads and for starts alike; then it is asked for anew."""
    runs = count(1)
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.input == 0:
            await gate.pass_through(attempt)
        return next(runs)

    ground.handles(number, handler)
    async with ground.worker(concurrency=2):
        running = await ground.client.start_chain(number, 0, id="running", result_ttl=0.001)
        await gate.next()
        assert await ground.client.start_and_wait(number, 1, id="a", result_ttl=3600) == 1
        await ground.client.update_result_ttl(["a"], 0.001)
        await _expired(ground, "a")
        assert await ground.client.start_and_wait(number, 1, id="a") == 2
        assert (await ground.client.start_chain(number, 0, id="running", attach=True)).deduplicated
        assert (await running.refresh()).status is ChainStatus.OPEN
        gate.open()
        await ground.log.wait_for(ChainClosed, chain_id="running")
        await _expired(ground, "running")


async def test_the_time_is_changed_afterwards(ground: Ground) -> None:
    """P34: of results and of errors; of what is open or is not there it is not."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    ground.handles(number, handler)
    client = ground.client
    async with ground.worker():
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


async def test_every_finish_has_an_error_of_its_own(ground: Ground) -> None:
    """P80: out of time, failed, cancelled, not there; each names its chain, and how it failed is in the chain."""

    async def handler(attempt: Attempt[int, int]) -> int:
        raise ValueError("seven")

    ground.handles(number, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    client = ground.client
    cancelled = await client.start_chain(number, 1)
    await client.cancel_chain(cancelled, reason="not wanted")
    with pytest.raises(ChainCancelledError, match="not wanted"):
        await cancelled.result(WAIT)
    with pytest.raises(WaitTimeoutError):
        await client.start_and_wait(number, 1, id="late", timeout=0.01)
    async with ground.worker():
        with pytest.raises(JobFailedError, match="ValueError: seven"):
            await client.start_and_wait(number, 1, id="late", timeout=WAIT)
    with pytest.raises(ChainNotFoundError):
        await client.get_chain("missing")
    chain, job = await client.get_chain("late"), await client.get_job("late")
    assert chain.error is not None
    assert (chain.error.type, chain.error.message, job.attempt) == ("ValueError", "seven", 2)
