"""Servers that forget scripts, restart, are killed, lose all data or are promoted: no worker dies of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from queuert import AsyncClient, NewChain
from queuert.embedded import EmbeddedRedis
from queuert.errors import ChainNotFoundError, StateUnavailableError
from queuert.observability.events import AttemptAborted, LoopFailed, StoreCallFailed, WorkerStopped
from queuert.policies import RetryPolicy
from queuert.state.redis import RedisState, encode
from queuert.state.types import ClaimRequest, Lease, NewJob, Renewal
from queuert.testing.fault_proxy import FaultProxy
from tests.conftest import StartRedis
from tests.redis.application import JOB_TYPES, LEASE, Plan, patient, quick
from tests.redis.harness import RedisHarness, needs_waitaof
from tests.support.waiting import WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

NewGround = Callable[[EmbeddedRedis], RedisHarness]
DURABLE: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "everysec"}


@pytest.fixture
async def new_ground(redis_url: str) -> AsyncIterator[NewGround]:
    """Makes grounds on servers of the test's own; their records are kept on the shared one, which stays up."""
    made: list[RedisHarness] = []

    def make(server: EmbeddedRedis) -> RedisHarness:
        made.append(RedisHarness(server.url(), records=redis_url))
        return made[-1]

    yield make
    for harness in made:
        await harness.stop()
        harness.check()
        await harness.close()


class Producer:
    """Starts chains without a pause, from many places at once, and remembers those whose start was acknowledged."""

    def __init__(self, state: RedisState, *, callers: int = 1) -> None:
        self.acknowledged: list[str] = []
        self.refused = 0
        self._client = AsyncClient(state, JOB_TYPES, max_connections=callers)
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run(callers))

    async def _run(self, callers: int) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._start())

    async def _start(self) -> None:
        while not self._enough.is_set():
            try:
                chains = await self._client.start_chains([NewChain(quick, number) for number in range(5)])
            except StateUnavailableError:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                self.acknowledged += [chain.id for chain in chains]

    async def more(self, count: int) -> None:
        """Wait until so many more chains were acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, "chains are started", 3 * WAIT)

    async def fails(self, before: int) -> None:
        """Wait until a start is refused: more of them than so many."""
        await until(lambda: self.refused > before, "a start fails")

    async def stop(self) -> None:
        """Start no more."""
        self._enough.set()
        await self._task


async def troubled(process: WorkerProcess) -> None:
    """Wait until a worker has met the outage."""
    await until(lambda: process.log.of(LoopFailed) or process.log.of(StoreCallFailed), "the worker has met the outage")


def stored(harness: RedisHarness) -> set[str]:
    """The ids of all jobs."""
    prefix = harness.key("j:")
    return {str(key).removeprefix(prefix) for key in harness.redis.scan_iter(match=f"{prefix}*", count=1000)}


@pytest.mark.parametrize(
    ("kills", "appendfsync", "waits"),
    [(False, "everysec", False), (True, "always", False), (True, "everysec", True)],
    ids=["stopped", "killed", "killed, flushes are waited for"],
)
async def test_restarted_under_load(
    private_redis: StartRedis, new_ground: NewGround, kills: bool, appendfsync: str, waits: bool
) -> None:
    """No chain is lost whose start was acknowledged by a server that is stopped, or that flushes before it answers.

    With ``everysec`` Redis postpones even the writing while the flush before is under way, and has answered by then: a
    kill loses what it acknowledged after its last flush, unless that is waited for.
    """
    server = private_redis(options=DURABLE | {"appendfsync": appendfsync})
    if waits:
        needs_waitaof(server.url())
    harness = new_ground(server)
    # Workers wait for no flush: what they wrote after the last one is forgotten, and then done again.
    harness.keeps_all = not kills or appendfsync == "always"
    processes = [harness.spawn(concurrency=20, poll_interval=0.1) for _ in range(2)]
    for process in processes:
        await process.started()
    # Who waits takes as long as a flush: many do it at once.
    producer = Producer(harness.state_at(wait_for_flush=waits), callers=20 if waits else 1)
    for _ in range(2):
        await producer.more(500)
        for process in processes:
            process.log.forget()
        refused = producer.refused
        await asyncio.to_thread(server.kill if kills else server.stop)
        for process in processes:
            await troubled(process)
        await producer.fails(refused)
        await asyncio.to_thread(server.start)
        await producer.more(500)
    await producer.stop()

    await harness.drained()
    lost = set(producer.acknowledged) - stored(harness)
    assert not lost, f"{len(lost)} of {len(producer.acknowledged)} acknowledged starts are lost"
    assert harness.count("completed") == len(stored(harness))
    for process in processes:
        assert process.log.of(WorkerStopped) == []
        assert not process.has_ended


async def test_away_for_longer_than_the_lease(redis_url: str, harness: RedisHarness, proxy: FaultProxy) -> None:
    """Nobody answers, connections stay up: the attempt is told in time, and the worker goes on by itself."""
    process = harness.spawn(url=proxy.address_in(redis_url), concurrency=2)
    await process.started()
    chain = await harness.client.start_chain(patient, Plan(before=[1]))
    await harness.step(chain.id, "began")
    proxy.black_hole()
    await process.log.wait_for(AttemptAborted, job_id=chain.id)
    await harness.expired(chain.id)
    proxy.heal()
    assert await chain.result(WAIT) == 2
    other = await harness.client.start_chain(quick, 7)
    assert await other.result(WAIT) == 7
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (2, 1)
    assert not process.has_ended


async def test_who_asks_a_server_that_does_not_answer_is_reported(redis_url: str, proxy: FaultProxy) -> None:
    """Connections stay up, new ones are made, and no byte comes back."""
    # The same timeout is for the opening before and the answer afterwards: so much that both have time, and all three
    # who are to lose it wait side by side.
    state = RedisState(proxy.address_in(redis_url), connect_timeout=4.0, answer_timeout=4.0)
    async with contextlib.AsyncExitStack() as stack:
        open_before, opened_late = state.async_store(max_connections=1), state.async_store(max_connections=1)
        stack.push_async_callback(open_before.aclose)
        await open_before.open()
        proxy.black_hole("to_client")
        requested = (
            open_before.get_jobs(["id"]),
            opened_late.open(),
            asyncio.to_thread(state.sync_store(max_connections=1).open),
        )
        reported = await asyncio.gather(*requested, return_exceptions=True)
        assert [type(one) for one in reported] == [StateUnavailableError] * 3
        proxy.heal()
        assert await open_before.get_jobs(["id"]) == [None]


async def test_scripts_are_forgotten_all_the_time(harness: RedisHarness) -> None:
    async with harness.worker(concurrency=8, poll_interval=0.1):
        chains = [await harness.client.start_chain(patient, Plan(continues=bool(number % 2))) for number in range(100)]
        while harness.count("completed") < 100:
            harness.redis.script_flush()
            await asyncio.sleep(0)
        for chain in chains:
            await chain.result(WAIT)
    assert harness.log.of(LoopFailed) == []


async def test_all_data_are_lost(harness: RedisHarness) -> None:
    """FLUSHALL under way: handlers are told that their jobs are gone, who waits hears it, and work goes on."""
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(patient, Plan(before=[1]))
        await harness.step(chain.id, "began")
        waiting = asyncio.create_task(chain.result(WAIT))
        harness.redis.flushall()
        aborted = await harness.log.wait_for(AttemptAborted, job_id=chain.id)
        assert aborted.reason == "not_found"
        with pytest.raises(ChainNotFoundError, match=chain.id):
            await waiting
        other = await harness.client.start_chain(quick, 3)
        assert await other.result(WAIT) == 3


async def test_a_replica_that_lags_is_promoted(private_redis: StartRedis, new_ground: NewGround) -> None:
    """What the primary acknowledged last may be lost, or undone; what is there is whole, and work goes on."""
    primary = private_redis()
    replica = private_redis(options={"masterauth": primary.password, "requirepass": primary.password})
    with FaultProxy("127.0.0.1", primary.port) as link, FaultProxy("127.0.0.1", primary.port) as address:
        standby = redis.Redis.from_url(replica.url(), decode_responses=True)
        standby.replicaof(link.host, link.port)
        await until(lambda: standby.info("replication")["master_link_status"] == "up", "the replica is in step")
        harness = new_ground(replica)
        harness.keeps_all = False  # Attempts that the replica never heard of run again.
        process = harness.spawn(url=address.address_in(primary.url()), concurrency=10, poll_interval=0.1)
        await process.started()
        producer = Producer(harness.state_at(address.address_in(primary.url())))
        await producer.more(100)
        link.black_hole()
        await producer.more(200)
        await asyncio.to_thread(primary.kill)
        address.target = (address.host, replica.port)
        address.reset()
        standby.replicaof("NO", "ONE")
        await until(lambda: standby.info("replication")["role"] == "master", "promoted")
        before = len(stored(harness))
        await producer.more(100)
        await producer.stop()
        await harness.drained()
        assert before < len(producer.acknowledged), "nothing lagged: the test shows nothing"
        assert not process.has_ended
        standby.close()


async def test_a_primary_that_became_a_replica_is_left(private_redis: StartRedis) -> None:
    """It still answers, but takes no write: connections are made anew, and lead to the new primary."""
    old = private_redis()
    new = private_redis(options={"requirepass": old.password})
    async with contextlib.AsyncExitStack() as stack:
        for server in (old, new):
            stack.callback(server.kill)  # One that stops in good order waits for its replicas.
        address = stack.enter_context(FaultProxy("127.0.0.1", old.port))
        demoted = stack.enter_context(redis.Redis.from_url(old.url()))
        state = RedisState(address.address_in(old.url()))
        store, sync_store = state.async_store(max_connections=2), state.sync_store(max_connections=2)
        stack.push_async_callback(store.aclose)
        stack.callback(sync_store.close)
        await store.open()
        await asyncio.to_thread(sync_store.open)
        await store.start_jobs([NewJob("a", "type", "1")])
        await asyncio.to_thread(sync_store.start_jobs, [NewJob("b", "type", "1")])
        address.target = (address.host, new.port)  # As a name that is resolved anew; connections stay up.
        demoted.config_set("masterauth", new.password)
        demoted.replicaof("127.0.0.1", new.port)
        with pytest.raises(StateUnavailableError):
            await store.start_jobs([NewJob("c", "type", "1")])
        await store.start_jobs([NewJob("c", "type", "1")])
        with pytest.raises(StateUnavailableError):
            await asyncio.to_thread(sync_store.start_jobs, [NewJob("d", "type", "1")])
        await asyncio.to_thread(sync_store.start_jobs, [NewJob("d", "type", "1")])


def test_leases_are_by_the_servers_clock() -> None:
    """No script is told a time by its caller, so clocks of clients cannot matter."""
    texts = [
        *encode.claim(ClaimRequest({"a": 60.0}, 1, "holder", "token"), []),
        *encode.renewals([Renewal(Lease("id", "token"), LEASE.seconds)]),
        *encode.reap({"a": RetryPolicy()}, 1),
        *encode.start([NewJob("id", "a", "{}")]),
    ]
    # Microseconds since 1970 have sixteen digits.
    assert not [text for text in texts if re.search(r"\d{16}", text)]
