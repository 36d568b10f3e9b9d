"""Defects that queues on Redis lists have had, each shown to be none here.

Further ones are shown where their faults are: a finish whose answer is lost is no failure of the handler, and a retry
is never half done (``test_doubt``); a late worker overwrites nothing (``test_frozen_workers``); a cancellation says
truly whether the job ran (``test_races``); ids of every kind (``test_identifiers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import redis.asyncio

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Processors
from queuert.errors import ChainNotFoundError
from queuert.ids import new_id, new_token
from queuert.jobs import JobStatus
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptCompleted, JobReaped, LeasesRenewed
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.state.redis import RedisState
from queuert.state.types import ClaimedJob, ClaimRequest, NewJob, ReapRequest, Renewal
from queuert.testing.conformance.builders import complete
from queuert.testing.events import EventLog
from queuert.testing.redis_scan import scan

WAIT = 20.0
AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
KEPT = LeasePolicy(seconds=4.0, renew_every=0.5)

anything = JobType("anything", input=Any, output=Any)
other = JobType("other", input=Any, output=Any)
JOB_TYPES = JobTypes(anything, other)


class Queue:
    """A namespace with a client and workers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.namespace = new_id()
        self.state = RedisState(url, namespace=self.namespace)
        self.log = EventLog()
        self.client = AsyncClient(self.state, JOB_TYPES, observability=self.log)
        self.processors = Processors(JOB_TYPES, retry=AT_ONCE)
        self._clients = [self.client]

    def handles(self, job_type: JobType[Any, Any], handler: Callable[[Attempt[Any, Any]], Any], **how: Any) -> None:
        self.processors.handles(job_type, **how)(handler)

    def another_client(self, **settings: Any) -> AsyncClient:
        self._clients.append(AsyncClient(self.state, JOB_TYPES, observability=self.log, **settings))
        return self._clients[-1]

    def worker(self, client: AsyncClient | None = None, **settings: Any) -> InProcessWorker:
        return InProcessWorker(client or self.client, self.processors, name="worker", **settings)

    async def abandoned(self, input: str = "1", lease: float = 0.2, type: str = "anything") -> ClaimedJob:
        """A job that was claimed by somebody of whom nothing is heard any more."""
        store = self.state.async_store(max_connections=1)
        await store.open()
        try:
            await store.start_jobs([NewJob(new_id(), type, input)])
            [claimed] = await store.claim(ClaimRequest({type: lease}, 1, "gone", new_token()))
            return claimed
        finally:
            await store.aclose()

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """Afterwards its namespace is whole, and the database holds nothing else."""
    queue = Queue(redis_url)
    yield queue
    await queue.close()
    with redis.Redis.from_url(redis_url) as client:
        assert scan(client, queue.namespace, alone=True) == []


async def gone(queue: Queue, chain_id: str) -> None:
    """Wait until there is no such chain any more."""
    async with asyncio.timeout(WAIT):
        with suppress(ChainNotFoundError):
            while True:
                await queue.client.get_chain(chain_id)


async def echo(attempt: Attempt[Any, Any]) -> Any:
    return attempt.input


async def test_the_end_of_one_result_is_not_that_of_another(queue: Queue) -> None:
    """D01: expiry is per chain."""
    queue.handles(anything, echo)
    async with queue.worker():
        long = await queue.client.start_chain(anything, "long", result_ttl=3600)
        brief = await queue.client.start_chain(anything, "brief", result_ttl=0.05)
        assert await long.result(WAIT) == "long"
        # Not by waiting for it: it may be gone before anybody looks.
        await queue.log.wait_for(AttemptCompleted, job_id=brief.id)
        await gone(queue, brief.id)
        assert await long.result(WAIT) == "long"


async def test_a_cancelled_id_that_is_started_again_runs_with_its_new_input_only(queue: Queue) -> None:
    """D02."""
    seen: list[Any] = []

    async def note(attempt: Attempt[Any, Any]) -> None:
        seen.append(attempt.input)

    await queue.client.start_chains([NewChain(anything, "before") for _ in range(200)])
    await queue.client.start_chain(anything, "old", id="same")
    await queue.client.cancel_chains(["same"], reason="not wanted")
    await queue.client.delete_chains(["same"])
    chain = await queue.client.start_chain(anything, "new", id="same")
    queue.handles(anything, note)
    async with queue.worker(concurrency=10):
        await queue.client.wait([chain], timeout=WAIT)
    assert seen.count("new") == 1
    assert "old" not in seen


async def test_who_waits_keeps_nobody_from_the_connection(queue: Queue) -> None:
    """D03: with one connection for a client that waits, starts and works on several types."""
    client = queue.another_client(max_connections=1)
    release = asyncio.Event()

    async def hold(attempt: Attempt[Any, Any]) -> Any:
        await release.wait()
        return attempt.input

    queue.handles(anything, hold)
    queue.handles(other, echo)
    async with queue.worker(client, concurrency=4):
        slow = await client.start_chain(anything, "slow")
        waiting = asyncio.create_task(slow.result(WAIT))
        for number in range(5):
            assert await (await client.start_chain(other, number)).result(WAIT) == number
        assert not waiting.done()
        release.set()
        assert await waiting == "slow"


async def test_all_messages_are_of_the_namespace(queue: Queue) -> None:
    """D04: retries, completions, failures and cancellations are told where subscribers of the namespace listen."""

    async def fail_once(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            raise ValueError("once")
        return attempt.input

    queue.handles(anything, fail_once)
    channels: set[bytes] = set()
    reported = {f"{{queuert:{queue.namespace}}}:notify:{topic}".encode() for topic in ("jobs", "chains")}
    async with redis.asyncio.Redis.from_url(queue.url) as client, client.pubsub() as subscription:
        await subscription.psubscribe("*")
        async with queue.worker():
            cancelled = await queue.client.start_chain(other, 1)
            await queue.client.cancel_chains([cancelled], reason="no")
            assert await (await queue.client.start_chain(anything, 1)).result(WAIT) == 1
        end = f"{{queuert:{queue.namespace}}}:end".encode()
        async for message in subscription.listen():
            if message["type"] == "pmessage":
                if message["channel"] == end:
                    break
                # Who tells does so in a thread of its own, perhaps after all is done.
                if not channels >= reported and channels | {message["channel"]} >= reported:
                    await client.publish(end, b"")
                channels.add(message["channel"])
    assert channels >= reported
    assert all(one.startswith(f"{{queuert:{queue.namespace}}}:notify:".encode()) for one in channels)


@pytest.mark.parametrize("hears", [True, False], ids=["notifications arrive", "no notification arrives"])
async def test_a_job_whose_claimer_is_gone_is_found_by_a_reaper_that_starts_later(queue: Queue, hears: bool) -> None:
    """D05, D06, D08: whoever took a job took its lease with it, no registry is asked, and no message is needed."""
    claimed = await queue.abandoned(input='"left"')
    queue.handles(anything, echo)
    client = queue.client if hears else queue.another_client(notify=InProcessNotify())
    chain = await queue.client.get_chain(claimed.id)
    async with queue.worker(client):
        assert await chain.result(WAIT) == "left"
    assert [(event.holder, event.attempt) for event in queue.log.of(JobReaped)] == [("gone", 1)]


async def test_what_a_worker_held_when_it_was_forced_to_stop_is_not_lost(queue: Queue) -> None:
    """D07: it is released, the attempt does not count, and another worker runs it."""
    began = asyncio.Event()

    async def hang(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            began.set()
            await asyncio.Event().wait()
        return attempt.number

    queue.handles(anything, hang)
    chain = await queue.client.start_chain(anything, 1)
    first = queue.worker(shutdown_timeout=0.0)
    await first.start()
    await began.wait()
    await first.stop(shutdown_timeout=0)
    job = await queue.client.get_job(chain.id)
    assert (job.status, job.attempt, job.uncounted) == (JobStatus.READY, 1, 1)
    async with queue.worker():
        assert await chain.result(WAIT) == 2


async def test_a_job_that_kills_its_workers_ends_as_failed(queue: Queue) -> None:
    """D10: each lost lease is counted."""
    policy = RetryPolicy(initial_delay=0.0, jitter=0.0, max_crashes=3)
    store = queue.state.async_store(max_connections=1)
    await store.open()
    await store.start_jobs([NewJob("poison", "anything", "1")])
    statuses: list[JobStatus] = []
    while JobStatus.FAILED not in statuses:
        await store.claim(ClaimRequest({"anything": 0.001}, 1, "dies", new_token()))
        statuses += [one.status for one in (await store.reap(ReapRequest({"anything": policy}))).reaped]
    await store.aclose()
    job = await queue.client.get_job("poison")
    assert statuses == [JobStatus.READY, JobStatus.READY, JobStatus.FAILED]
    assert (job.attempt, job.lease_expirations) == (3, 3)
    assert job.last_error is not None


async def test_a_late_finish_leaves_the_result_of_the_other_worker(queue: Queue) -> None:
    """D11."""
    claimed = await queue.abandoned()
    queue.handles(anything, echo)
    store = queue.state.async_store(max_connections=1)
    await store.open()
    async with queue.worker():
        chain = await queue.client.get_chain(claimed.id)
        assert await chain.result(WAIT) == 1
        [late] = await store.finish([complete(claimed, '"late"')])
        assert late.lost == "already_completed"
        assert await store.renew([Renewal(claimed.lease, 60.0)]) == [False]
        assert await chain.result(WAIT) == 1
    await store.aclose()


async def test_a_job_that_takes_longer_than_its_lease_runs_once(queue: Queue) -> None:
    """D12: leases are renewed."""

    async def outlast(attempt: Attempt[Any, Any]) -> Any:
        # At half a second each, or a little less, the lease would have ended.
        await queue.log.wait_for(LeasesRenewed, times=12, count=1)
        return attempt.number

    queue.handles(anything, outlast, lease=KEPT)
    async with queue.worker(), queue.worker():
        assert await (await queue.client.start_chain(anything, 1)).result(WAIT) == 1
    assert queue.log.of(JobReaped) == []


@pytest.mark.parametrize("id", [":", "a:exp", "a", "{b}", "a:exp:exp"])
async def test_ids_with_colons_are_not_confused(queue: Queue, id: str) -> None:
    """D13."""
    queue.handles(anything, echo)
    async with queue.worker():
        chain = await queue.client.start_chain(anything, id, id=id)
        assert (chain.id, await chain.result(WAIT)) == (id, id)


@pytest.mark.parametrize(
    "payload",
    ["\x01\x7f\u0080\u07ff\uffff\U0001f600", 10**40, -0.0, 1e-300, {"": [[], {}, None]}, '"\\/', "[1,", " ", 0.1 + 0.2],
    ids=repr,
)
async def test_payloads_come_back_as_they_were_also_after_a_retry(queue: Queue, payload: Any) -> None:
    """D14: no script parses or rounds them."""

    async def second_time(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            raise ValueError("once")
        return attempt.input

    queue.handles(anything, second_time)
    async with queue.worker():
        result = await (await queue.client.start_chain(anything, payload)).result(WAIT)
    assert repr(result) == repr(payload)


async def test_no_result_is_a_result(queue: Queue) -> None:
    """D15: who waits for a handler that returns nothing gets None, after one attempt."""

    async def nothing(attempt: Attempt[Any, Any]) -> None:
        return None

    queue.handles(anything, nothing)
    async with queue.worker():
        chain = await queue.client.start_chain(anything, 1)
        assert await chain.result(WAIT) is None
    assert (await queue.client.get_job(chain.id)).attempt == 1


async def test_of_two_who_wait_for_one_chain_the_second_is_reported_when_the_first_gave_up(queue: Queue) -> None:
    """D17."""
    release = asyncio.Event()

    async def hold(attempt: Attempt[Any, Any]) -> Any:
        await release.wait()
        return attempt.input

    queue.handles(anything, hold)
    async with queue.worker():
        chain = await queue.client.start_chain(anything, 1)
        first, second = (asyncio.create_task(chain.result(WAIT)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        release.set()
        assert await second == 1


@pytest.mark.parametrize("steps", range(25))
async def test_a_cancellation_is_never_lost(queue: Queue, steps: int) -> None:
    """Whenever it comes: in the middle of a command as well, after which the connection is not used again."""
    client = queue.another_client(max_connections=1)
    chain = await queue.client.start_chain(anything, 1)
    await client.get_chain(chain.id)
    waiting = asyncio.create_task(chain.result(WAIT) if steps % 2 else client.wait([chain], timeout=WAIT))
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await client.get_chain(chain.id)).id == chain.id
    assert (await client.get_job(chain.id)).id == chain.id
