"""What must not show through from one namespace of a store into another, for any two adapters on one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Limits, NewChain, Processors
from queuert.activity import Activity, ActivityFilter, ActivityReport
from queuert.deduplication import Deduplicate
from queuert.errors import ChainNotFoundError
from queuert.ids import new_token
from queuert.observability.events import AttemptStarted
from queuert.policies import RetryPolicy
from queuert.schedules import RecurringSchedule
from queuert.state import AsyncStore, StateAdapter
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.types import ClaimRequest, NewJob, PruneRequest, ReapRequest
from queuert.testing.conformance.builders import claim_one, complete, error_of, eventually, job
from queuert.testing.events import EventLog
from queuert.workers import WorkerHeartbeat

Pair = tuple[StateAdapter, StateAdapter]

_PAGE = PageRequest()


@asynccontextmanager
async def _stores(pair: Pair) -> AsyncIterator[tuple[AsyncStore, AsyncStore]]:
    stores = (pair[0].async_store(), pair[1].async_store())
    try:
        for store in stores:
            await store.open()
        yield stores
    finally:
        for store in stores:
            await store.aclose()


async def same_ids_are_different_jobs(pair: Pair) -> None:
    """Jobs, results, deduplication keys and blockers of one are nothing to the other, also where ids are the same."""
    async with _stores(pair) as (here, there):
        key = Deduplicate("key")
        await here.start_jobs([job(id="same", deduplication=key)])
        [other] = await there.start_jobs([job(id="same", deduplication=key, input='"there"')])
        assert not other.existing
        held = await claim_one(here)
        await here.finish([complete(held, '"here"')])
        [mine], [theirs] = await here.get_chains(["same"]), await there.get_chains(["same"])
        assert mine is not None
        assert theirs is not None
        assert (mine.status, mine.output, theirs.status, theirs.input) == ("completed", '"here"', "open", '"there"')
        # A lease of one is none in the other.
        assert [result.written for result in await there.finish([complete(held)])] == [False]
        await here.start_jobs([job(id="only here")])
        await error_of(ChainNotFoundError, there.start_jobs([job(blockers=["only here"])]))


async def nothing_is_listed_or_counted(pair: Pair) -> None:
    """Lists, look-ups, counts, workers and pauses show what is of this namespace, and change nothing else."""
    async with _stores(pair) as (here, there):
        await here.start_jobs([job(id="a", attributes={"user": "17"}), job("other")])
        beat = WorkerHeartbeat("w", "w", "h", 1, "1", ("work",), 1, 0, 0.0)
        now = await here.record_heartbeat(beat, 3600.0)
        did = Activity(now.replace(second=0, microsecond=0), 60, "work", started=1)
        await here.record_heartbeat(beat, 3600.0, ActivityReport(1, [did]))
        await here.pause_job_types(["work"])
        for filter in (ChainFilter(), ChainFilter(attributes=(("user", "17"),))):
            assert (await there.list_chains(filter, _PAGE)).items == ()
        assert (await there.list_jobs(JobFilter(), _PAGE)).items == ()
        assert await there.get_jobs(["a"]) == [None]
        assert await there.get_chains(["a"]) == [None]
        assert await there.count_jobs() == []
        assert await there.list_workers() == []
        assert await there.get_activity(ActivityFilter(now - timedelta(hours=1))) == []
        assert await there.list_paused_job_types() == []
        assert await there.next_due(["other"]) is None
        await there.start_jobs([job(id="theirs")])
        assert [one.id for one in await there.claim(ClaimRequest({"work": 60.0}, 10, "h", new_token()))] == ["theirs"]
        await there.remove_worker("w")
        await there.resume_job_types(["work"])
        await there.delete_chains(["a"])
        await there.prune(PruneRequest())
        await there.reap(ReapRequest({"work": RetryPolicy()}))
        assert [one.id for one in (await here.list_chains(ChainFilter(attributes=(("user", "17"),)), _PAGE))] == ["a"]
        assert [one.id for one in await here.list_workers()] == ["w"]
        assert [one.type for one in await here.list_paused_job_types()] == ["work"]


async def limits_are_counted_apart(pair: Pair) -> None:
    """What one runs takes no place of the other's limits."""
    async with _stores(pair) as (here, there):
        limits = {"work": Limits(concurrency=1)}

        async def claim(store: AsyncStore) -> int:
            return len(await store.claim(ClaimRequest({"work": 60.0}, 10, "h", new_token(), limits)))

        for store in (here, there):
            await store.start_jobs([NewJob(f"job{at}", "work", "1") for at in range(3)])
        assert [await claim(here), await claim(there)] == [1, 1]
        assert [await claim(here), await claim(there)] == [0, 0]


number = JobType("number", input=int, output=int)
_JOB_TYPES = JobTypes(number)
_TICKING = RecurringSchedule("ticking", number, 1, cron="0 0 1 1 *")


async def workers_work_for_their_own(pair: Pair) -> None:
    """Notifications, schedules and workers: started and stopped again and again, each namespace gets its own
    results."""
    log = EventLog()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(state, _JOB_TYPES, observability=log)) for state in pair]
        for again in range(2):
            async with AsyncExitStack() as workers:
                for at, client in enumerate(clients):
                    await workers.enter_async_context(_worker(client, at))
                await clients[0].put_schedules([_TICKING])
                [schedule] = await clients[0].list_schedules()
                assert schedule.name == "ticking"
                assert await clients[1].list_schedules() == []
                for client in clients:
                    assert len(await client.list_workers()) == 1
                chains = [
                    chain
                    for client in clients
                    for chain in await client.start_chains([NewChain(number, 1, id=f"{again} {at}") for at in range(5)])
                ]
                async with asyncio.timeout(20):
                    assert [await chain.result() for chain in chains] == [10] * 5 + [11] * 5
            for client in clients:
                await eventually(partial(_has_no_workers, client))
    assert len(log.of(AttemptStarted)) == 20


async def _has_no_workers(client: AsyncClient) -> bool:
    """A worker that stops waits for a second, not for ever, until it is struck off the list."""
    return await client.list_workers() == []


def _worker(client: AsyncClient, at: int) -> InProcessWorker:
    processors = Processors(_JOB_TYPES)

    async def handler(attempt: Attempt[int, int]) -> int:
        return attempt.input * 10 + at

    processors.handles(number)(handler)
    # Only a notification makes it look before the test is over.
    return InProcessWorker(client, processors, poll_interval=3600.0)


CHECKS: list[Callable[[Pair], Awaitable[None]]] = [
    same_ids_are_different_jobs,
    nothing_is_listed_or_counted,
    limits_are_counted_apart,
    workers_work_for_their_own,
]
