"""Why a job does not run: each cause, on each store."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from queuert import AsyncClient, JobType, JobTypes, Limits, Rate, after
from queuert.cli import build_parser
from queuert.client.async_explaining import reasons_of
from queuert.errors import ChainNotFoundError, StateError, WaitTimeoutError
from queuert.explanations import MAX_CHAINS, MAX_DEPTH, Cause, Explanation, Reason, Surroundings, reasons
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainRecord, ChainStatus, Job, JobError, JobStatus
from queuert.limits import TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability, StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.sqlite import SQLiteState
from queuert.state.steps import EventWait, NewStep
from queuert.state.types import ClaimedJob, Finish, FinishKind, WaitFacts
from queuert.testing.conformance.builders import ask, claim_one, complete, expire, fail, reap, run_out
from queuert.workers import EVERY_WORKER_HANDLES, WorkerHeartbeat, WorkerState

work = JobType("work", input=int, output=int)
join = JobType("join", input=int, output=int)
order = JobType("order", input=int, continues_with=work)
JOB_TYPES = JobTypes(work, join, order)

_LONG = 86_400.0

HEARD = "its workers were last heard of 0 s ago"


class Queue:
    """A client, and the store behind it, on which a test plays the worker."""

    def __init__(self, client: AsyncClient, store: AsyncStore) -> None:
        self.client = client
        self.store = store

    async def worker(self, *types: str, running: int = 0, id: str = "worker", **options: Any) -> None:
        """A worker of one slot writes its heartbeat."""
        beat = WorkerHeartbeat(id, id, "here", 1, "1", types or ("work",), 1, running, 0.0, **options)
        await self.store.record_heartbeat(beat, 60.0)

    async def claim(self, limits: Limits | None = None, **options: Any) -> ClaimedJob:
        request = replace(ask("work", **options), limits={} if limits is None else {"work": limits})
        [claimed] = await self.store.claim(request)
        return claimed

    async def fail_work(self) -> None:
        """Fail all jobs of the type "work"."""
        for claimed in await self.store.claim(ask("work", limit=500)):
            await self.store.finish([fail(claimed)])

    async def fail_joins(self) -> None:
        """Fail all jobs of the type "join" for their blockers."""
        for claimed in await self.store.claim(ask("join", limit=500)):
            error = JobError("blocker_failed", "a chain failed", "BlockerFailedError")
            await self.store.finish([Finish(claimed, FinishKind.FAIL, error=error)])

    async def causes(self, chain: Any) -> list[str]:
        return [str(cause) for cause in (await self.client.explain(chain)).causes]

    async def only(self, chain: Any) -> Reason:
        """The only reason, as if the workers had just been heard of."""
        [reason] = (await self.client.explain(chain)).reasons
        return replace(reason, text=re.sub(r"heard of \d+ s ago", "heard of 0 s ago", reason.text))


@pytest.fixture(params=["postgres", "sqlite", "redis"])
def state(request: pytest.FixtureRequest) -> StateAdapter:
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        from queuert.state.redis import RedisState

        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState()


@pytest.fixture
async def queue(state: StateAdapter) -> AsyncIterator[Queue]:
    store = state.async_store(max_connections=1)
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client:
        await store.open()
        yield Queue(client, store)
        await store.aclose()


async def test_nothing_holds_it(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    text = f"nothing holds it: the next claim of its type takes it; {HEARD}"
    assert await queue.only(chain) == Reason(Cause.DUE, text)


async def test_a_closed_chain(queue: Queue) -> None:
    done, failed = await queue.client.start_chain(work, 1), await queue.client.start_chain(work, 2)
    await queue.store.finish([complete(await claim_one(queue.store))])
    await queue.store.finish([fail(await claim_one(queue.store))])
    assert (await queue.only(done)).text.startswith("the chain is completed since 20")
    found = await queue.client.explain(failed)
    assert (found.causes, found.chain_status) == ((Cause.CLOSED,), ChainStatus.FAILED)
    assert "failed since" in str(found)


async def test_it_runs(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker(id="one")
    await queue.claim(holder="one")
    reason = await queue.only(chain)
    job = await queue.client.get_job(chain.id)
    assert (reason.cause, reason.until) == (Cause.RUNNING, job.lease_expires_at)
    assert "worker one runs attempt 1 since" in reason.text
    assert "was last heard of" in reason.text


async def test_it_runs_on_a_worker_that_died(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.claim(holder="gone")
    assert "worker gone" in (await queue.only(chain)).text
    assert "is not listed: it has stopped or died" in (await queue.only(chain)).text


async def test_its_lease_expired(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await expire(queue.store, await queue.claim())
    assert await queue.causes(chain) == ["lease_expired", "no_worker"]
    await queue.worker()
    assert "a reaper takes the job next" in (await queue.only(chain)).text


async def test_it_has_lost_leases(queue: Queue) -> None:
    """It may be the job that kills its workers: ready, and while it runs again."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    seen = ""
    for number, text in ((1, "1 of its attempts has"), (2, "2 of its attempts have")):
        held = await queue.claim()
        await run_out(queue.store, held)
        await reap(queue.store)
        seen = f"; {text} crashed or lost the lease: queuert jobs show {chain.id} names the workers"
        ready = await queue.only(chain)
        assert (ready.cause, ready.text.endswith(f"{HEARD}{seen}")) == (Cause.DUE, True), number
    await queue.claim()
    running = await queue.only(chain)
    assert (running.cause, running.text.endswith(seen)) == (Cause.RUNNING, True)


async def test_it_is_scheduled(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1, run_at=after(hours=1))
    await queue.worker()
    reason = await queue.only(chain)
    job = await queue.client.get_job(chain.id)
    assert (reason.cause, reason.until) == (Cause.SCHEDULED, job.scheduled_at)


async def test_it_sleeps(queue: Queue) -> None:
    """It says in which step; a sleep that is over, and a step that is none, say nothing."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    held = await claim_one(queue.store)
    await queue.store.record_step(held.lease, NewStep(1, "charge", 1, result="1"))
    step = await queue.store.record_step(held.lease, NewStep(2, "cool down", 1, wake_at=after(hours=1)))
    assert step.wake_at is not None
    await queue.store.finish([Finish(held, FinishKind.SNOOZE, run_at=RunAt(moment=step.wake_at))])
    text = f"sleeps until {step.wake_at:%Y-%m-%d %H:%M:%S} UTC, in step 'cool down'"
    assert await queue.only(chain) == Reason(Cause.SCHEDULED, text, step.wake_at)
    await queue.client.reschedule_chains([chain], after())
    held = await claim_one(queue.store)
    await queue.store.record_step(held.lease, NewStep(3, "ship", 2, result="1"))
    await queue.store.finish([Finish(held, FinishKind.SNOOZE, run_at=after(hours=2))])
    assert "is scheduled for" in (await queue.only(chain)).text


async def test_it_waits_for_an_event(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    held = await claim_one(queue.store)
    wait = await queue.store.wait_for_event(held.lease, EventWait(1, "approved", 1, "approved", 60.0))
    assert wait.wake_at is not None
    snooze = Finish(held, FinishKind.SNOOZE, run_at=RunAt(moment=wait.wake_at), waits_for_event=wait.event)
    await queue.store.finish([snooze])
    text = f"waits for the event 'approved' until {wait.wake_at:%Y-%m-%d %H:%M:%S} UTC"
    assert await queue.only(chain) == Reason(Cause.WAITS_FOR_EVENT, text, wait.wake_at)
    for name in ("aproved", "aproved", "Approved"):
        await queue.client.send_event(chain, name)
    sent = "events that were sent to it, and that no job has taken: 'Approved', 'aproved'"
    assert (await queue.only(chain)).text == f"{text}; {sent}"
    await queue.client.send_event(chain, "approved")
    assert (await queue.only(chain)).cause is Cause.DUE


async def test_it_waits_for_its_next_attempt(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    error = JobError("handler", "no\nroute to host", "OSError")
    await queue.store.finish([Finish(await queue.claim(), FinishKind.RETRY, error=error, delay=_LONG)])
    reason = await queue.only(chain)
    assert reason.cause is Cause.RETRY_DELAYED
    assert reason.text.endswith("after attempt 1 failed: OSError: no route to host")
    assert reason.until is not None


async def test_a_release_is_no_failure(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1, run_at=after(hours=1))
    await queue.worker()
    assert await queue.causes(chain) == ["scheduled"]


async def test_its_type_is_paused(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    await queue.client.pause_job_types([work], reason="gateway down")
    reason = await queue.only(chain)
    assert reason.cause is Cause.TYPE_PAUSED
    assert reason.text.endswith("UTC: gateway down")


async def test_nobody_handles_its_type(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    assert (await queue.only(chain)).text == "no live worker handles type work: no worker is alive"
    await queue.worker("join", "mail")
    await queue.worker("work", id="leaving", state=WorkerState.STOPPING)
    stopping = "1 worker that handles it is stopping (leaving); the other workers handle join, mail"
    assert await queue.only(chain) == Reason(Cause.NO_WORKER, f"no live worker handles type work: {stopping}")
    await queue.worker("work", id="second", state=WorkerState.STOPPING)
    assert "2 workers that handle it are stopping (leaving, second); " in (await queue.only(chain)).text


async def test_only_workers_that_are_stopping_are_left(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker("join", state=WorkerState.STOPPING)
    assert (await queue.only(chain)).text == "no live worker handles type work: all live workers are stopping"
    await queue.worker("work", state=WorkerState.STOPPING)
    stopping = "1 worker that handles it is stopping (worker)"
    assert (await queue.only(chain)).text == f"no live worker handles type work: {stopping}"


async def test_workers_that_are_stopping_are_named_beside_those_that_claim(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker(id="leaving", state=WorkerState.STOPPING)
    await queue.worker()
    stopping = "; 1 worker that handles it is stopping (leaving)"
    due = await queue.only(chain)
    assert (due.cause, due.text.endswith(stopping)) == (Cause.DUE, True)
    await queue.claim(holder="worker")
    busy = await queue.only(await queue.client.start_chain(work, 2))
    assert busy.cause is Cause.WORKERS_BUSY
    assert busy.text == f"no worker of type work has a free slot: worker (1 of 1){stopping}"


async def test_several_causes_at_once(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1, run_at=after(hours=1))
    await queue.client.pause_job_types([work])
    assert await queue.causes(chain) == ["scheduled", "type_paused", "no_worker"]


async def test_all_workers_are_busy(queue: Queue) -> None:
    """Also those that have become busy since their last heartbeat, or free."""
    await queue.client.start_chain(work, 0)
    await queue.worker()
    await queue.worker("join", id="other")
    held = await queue.claim(holder="worker")
    chain = await queue.client.start_chain(work, 1)
    reason = await queue.only(chain)
    assert (reason.cause, reason.text) == (
        Cause.WORKERS_BUSY,
        "no worker of type work has a free slot: worker (1 of 1)",
    )
    await queue.worker(running=1)
    await queue.store.finish([complete(held)])
    assert await queue.causes(chain) == ["due"]


async def test_a_batch_takes_no_slot(queue: Queue) -> None:
    await queue.worker()
    await queue.client.start_bulk_operation("retry", requested_by="ana")
    await queue.store.claim(ask(BULK_OPERATION_TYPE, holder="worker"))
    chain = await queue.client.start_chain(work, 1)
    assert await queue.causes(chain) == ["due"]


async def parts_of(queue: Queue, id: str) -> tuple[ChainRecord, Job, WaitFacts]:
    """What an explanation of a chain of one job is made of."""
    [record] = await queue.store.get_chains([id])
    [job] = await queue.store.get_jobs([id])
    facts = await queue.store.get_wait_facts(id)
    assert record is not None
    assert job is not None
    assert facts is not None
    return record, job, facts


async def after_silence(queue: Queue, id: str, seconds: float) -> list[Reason]:
    """What holds a chain, if the workers wrote their last heartbeats so long ago."""
    record, job, facts = await parts_of(queue, id)
    seen_at = facts.now - timedelta(seconds=seconds)
    around = Surroundings({}, [replace(one, seen_at=seen_at) for one in await queue.store.list_workers()])
    return reasons(record, job, facts, around, ())


async def test_its_workers_were_killed(queue: Queue) -> None:
    """It is known before they are no longer listed: their heartbeats are overdue."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    assert [one.cause for one in await after_silence(queue, chain.id, 20)] == [Cause.DUE]
    [reason] = await after_silence(queue, chain.id, 40)
    assert reason.cause is Cause.WORKERS_SILENT
    assert reason.text.startswith("its workers were last heard of 40 s ago, and write every 20 s: they have died")


async def test_no_reaper_is_left(queue: Queue) -> None:
    """The worker whose lease has expired was the only one: nobody takes the job."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker(id="killed")
    await expire(queue.store, await queue.claim(holder="killed"))
    [reason] = await after_silence(queue, chain.id, 0)
    assert reason.cause is Cause.LEASE_EXPIRED
    assert reason.text.endswith("; no other worker of its type is there to take the job")
    await queue.worker(id="another")
    [reason] = await after_silence(queue, chain.id, 0)
    assert reason.text.endswith("; a reaper takes the job next")
    expired, silent = await after_silence(queue, chain.id, 40)
    assert expired.text.endswith("; no other worker of its type is there to take the job")
    assert silent.cause is Cause.WORKERS_SILENT


async def test_a_client_is_to_complete_it(queue: Queue) -> None:
    """That no worker handles the type, or that it is paused, is not the reason. A time to come is."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker("join", traits=(TypeTraits("work", completed_by_client=True),))
    await queue.client.pause_job_types([work])
    reason = await queue.only(chain)
    assert reason.cause is Cause.WAITS_FOR_CLIENT
    assert re.fullmatch(r"waits for a client to complete it, since 20[^;]+", reason.text)
    await queue.worker("join", traits=(TypeTraits("work", completed_by_client=True, overdue_after=_LONG),))
    assert re.search("; overdue after 20", (await queue.only(chain)).text)
    await queue.worker("join", traits=(TypeTraits("work", completed_by_client=True, overdue_after=0.0),))
    assert re.search("; overdue since 20", (await queue.only(chain)).text)
    later = await queue.client.start_chain(work, 1, run_at=after(hours=1))
    assert (await queue.only(later)).cause is Cause.SCHEDULED


async def test_who_does_the_batches_of_a_bulk_operation(queue: Queue) -> None:
    """Any worker, whatever it handles and however busy it is, and a command."""
    operation = (await queue.client.start_bulk_operation("retry", requested_by="ana")).id
    start = f"no live worker handles type {BULK_OPERATION_TYPE}: "
    remedy = "; any worker does batches, whatever it handles: start one, or run queuert operations run"
    reason = await queue.only(operation)
    assert (reason.cause, reason.text) == (Cause.NO_WORKER, f"{start}no worker is alive{remedy}")
    await queue.worker("join", state=WorkerState.STOPPING)
    stopping = "1 worker that handles it is stopping (worker)"
    assert (await queue.only(operation)).text == f"{start}{stopping}{remedy}"
    await queue.worker("work", id="busy")
    await queue.client.start_chain(work, 1)
    await queue.claim(holder="busy")
    who = "any live worker (busy) does the next batch, or queuert operations run"
    text = f"nothing holds it: the next claim of its type takes it; {who}; {HEARD}; {stopping}"
    assert await queue.only(operation) == Reason(Cause.DUE, text)
    later = (await queue.client.start_bulk_operation("cancel", requested_by="ana")).id
    assert (await queue.only(later)).cause is Cause.BEHIND_OTHERS
    [silent] = await after_silence(queue, operation, 40)
    assert (silent.cause, silent.text.endswith(remedy)) == (Cause.WORKERS_SILENT, True)


async def test_a_bulk_operation_whose_type_is_paused(queue: Queue) -> None:
    """Clients do no batches, either."""
    operation = (await queue.client.start_bulk_operation("retry", requested_by="ana")).id
    await queue.client.pause_job_types([BULK_OPERATION_TYPE], reason="too much")
    await queue.worker("join")
    reason = await queue.only(operation)
    assert reason.cause is Cause.TYPE_PAUSED
    resume = f"queuert job-types resume {BULK_OPERATION_TYPE}"
    assert reason.text.endswith(f": too much; neither workers nor queuert operations run do batches until {resume}")
    assert await queue.client.run_bulk_operations() == 0
    assert (await queue.client.get_bulk_operation(operation)).status is ChainStatus.OPEN


async def test_a_batch_that_a_client_does(queue: Queue) -> None:
    """A client has no heartbeat, and need not have died."""
    operation = (await queue.client.start_bulk_operation("retry", requested_by="ana")).id
    held = await claim_one(queue.store, BULK_OPERATION_TYPE)
    reason = await queue.only(operation)
    assert (reason.cause, reason.text.partition(" since ")[0]) == (Cause.RUNNING, "holder runs attempt 1")
    assert reason.text.endswith("; it is no live worker: it is a client, or has stopped or died")
    await expire(queue.store, held)
    found = (await queue.client.explain(operation)).reasons
    assert [one.cause for one in found] == [Cause.LEASE_EXPIRED, Cause.NO_WORKER]
    assert found[0].text.startswith("the lease of holder expired ")
    taken = "no other worker is there to take the job: start one, or run queuert operations run"
    assert found[0].text.endswith(taken)
    await queue.worker("join")
    assert (await queue.only(operation)).text.endswith("; a reaper takes the job next")


def test_the_type_of_bulk_operations_is_what_every_worker_handles() -> None:
    assert set(EVERY_WORKER_HANDLES) == {BULK_OPERATION_TYPE}


async def test_others_come_first(queue: Queue) -> None:
    await queue.client.start_chain(work, 1)
    chain = await queue.client.start_chain(work, 2)
    await queue.worker()
    reason = await queue.only(chain)
    assert (reason.cause, reason.text) == (
        Cause.BEHIND_OTHERS,
        f"1 ready job is claimed before it, of type work; {HEARD}",
    )


async def test_the_turn_of_a_key(queue: Queue) -> None:
    chains = [await queue.client.start_chain(work, 1, limit_key=key) for key in ("zoe", "ada", "zoe")]
    await queue.worker(limits={"work": Limits(fair=True)})
    found = [await queue.only(chain) for chain in chains]
    assert [one.cause for one in found] == [Cause.KEY_TURN] * 3
    turns = "the keys of type work take turns: of key"
    assert [one.text for one in found] == [
        f"{turns} 'zoe', it is the next; {HEARD}",
        f"{turns} 'ada', it is the next; {HEARD}",
        f"{turns} 'zoe', 1 ready job is claimed before it; {HEARD}",
    ]


async def test_the_chain_of_a_key_that_goes_first(queue: Queue) -> None:
    if Capability.ORDERED_KEYS not in queue.client.state.capabilities:
        pytest.skip("the store keeps no order")
    first, second = [await queue.client.start_chain(work, 1, limit_key="zoe") for _ in range(2)]
    limits = Limits(ordered=True)
    await queue.worker(limits={"work": limits})
    assert await queue.causes(first) == ["due"]
    await queue.claim(limits, limit=1)
    reason = await queue.only(second)
    assert reason.cause == Cause.KEY_ORDER
    assert reason.text == f"waits for its turn behind chain {first.id} of key 'zoe'"
    [ahead] = (await queue.client.explain(second)).leaves()
    assert (ahead.chain_id, ahead.causes) == (first.id, (Cause.RUNNING,))


async def test_the_chain_that_goes_first_is_followed_to_what_holds_it(queue: Queue) -> None:
    """Also beside another reason; a type that clients complete has no order."""
    if Capability.ORDERED_KEYS not in queue.client.state.capabilities:
        pytest.skip("the store keeps no order")
    leaf = await queue.client.start_chain(join, 1, run_at=after(hours=1))
    first = await queue.client.start_chain(work, 1, limit_key="zoe", blockers=[leaf])
    second = await queue.client.start_chain(work, 2, limit_key="zoe", run_at=after(hours=1))
    await queue.worker("work", "join", limits={"work": Limits(ordered=True)})
    found = await queue.client.explain(second)
    assert found.causes == (Cause.SCHEDULED, Cause.KEY_ORDER)
    [ahead] = found.blockers
    assert (ahead.chain_id, ahead.causes, found.more_blockers) == (first.id, (Cause.BLOCKED,), 0)
    [held] = found.leaves()
    assert (held.chain_id, held.causes) == (leaf.id, (Cause.SCHEDULED,))
    by_clients = (TypeTraits("work", completed_by_client=True),)
    await queue.worker("work", "join", limits={"work": Limits(ordered=True)}, traits=by_clients)
    found = await queue.client.explain(second)
    assert (found.causes, found.blockers) == ((Cause.SCHEDULED,), ())


async def test_a_chain_that_its_job_waits_for_and_that_goes_first(queue: Queue) -> None:
    """It is explained once."""
    if Capability.ORDERED_KEYS not in queue.client.state.capabilities:
        pytest.skip("the store keeps no order")
    first = await queue.client.start_chain(work, 1, limit_key="zoe")
    second = await queue.client.start_chain(work, 2, limit_key="zoe", blockers=[first])
    await queue.worker(limits={"work": Limits(ordered=True)})
    found = await queue.client.explain(second)
    assert found.causes == (Cause.BLOCKED, Cause.KEY_ORDER)
    assert ([one.chain_id for one in found.blockers], found.more_blockers) == ([first.id], 0)


@pytest.mark.parametrize(
    ("limits", "causes", "part"),
    [
        (Limits(concurrency=1), ["concurrency_limit"], "the limit of type work is used up: 1 of 1 run ("),
        (Limits(per_key=1), ["key_limit"], "the limit of key 'zoe' is used up: 1 of 1 run ("),
        (
            Limits(rate=Rate(1, per=_LONG)),
            ["rate_limit"],
            "the rate of key 'zoe' is used up: 1 of 1 attempts began within",
        ),
        (Limits(concurrency=2, per_key=2, rate=Rate(2, per=_LONG)), ["due"], "nothing holds it"),
    ],
    ids=["concurrency", "key", "rate", "free"],
)
async def test_limits(queue: Queue, limits: Limits, causes: list[str], part: str) -> None:
    await queue.client.start_chain(work, 1, limit_key="zoe")
    await queue.worker(limits={"work": limits})
    claimed = await queue.claim(limits)
    chain = await queue.client.start_chain(work, 2, limit_key="zoe")
    assert await queue.causes(chain) == causes
    reason = await queue.only(chain)
    assert reason.text.startswith(part)
    assert reason.text.endswith(f"({claimed.id} at worker holder)") == part.endswith("(")
    if limits.rate is not None and reason.cause is Cause.RATE_LIMIT:
        assert reason.until is not None
        assert abs(reason.until - claimed.started_at - timedelta(seconds=_LONG)) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (Limits(concurrency=1), "concurrency_limit"),
        (Limits(per_key=1), "key_limit"),
        (Limits(rate=Rate(1, per=_LONG)), "rate_limit"),
    ],
    ids=["concurrency", "key", "rate"],
)
async def test_limits_beside_other_reasons(queue: Queue, limits: Limits, cause: str) -> None:
    """A rate that is free again before the job is due does not hold it."""
    await queue.client.start_chain(work, 1, limit_key="zoe")
    await queue.worker(limits={"work": limits})
    await queue.claim(limits)
    blocker = await queue.client.start_chain(join, 1)
    soon = await queue.client.start_chain(work, 2, limit_key="zoe", run_at=after(hours=1))
    late = await queue.client.start_chain(work, 2, limit_key="zoe", run_at=after(days=2))
    blocked = await queue.client.start_chain(work, 2, limit_key="zoe", blockers=[blocker])
    ready = await queue.client.start_chain(work, 2, limit_key="zoe")
    assert await queue.causes(soon) == ["scheduled", cause]
    assert await queue.causes(late) == ["scheduled", cause][: 1 if cause == "rate_limit" else 2]
    assert await queue.causes(blocked) == ["blocked", cause]
    await queue.client.pause_job_types([work])
    assert await queue.causes(ready) == ["type_paused", cause]
    await queue.worker(state=WorkerState.STOPPING, limits={"work": limits})
    assert await queue.causes(ready) == ["type_paused", "no_worker", cause]


async def test_it_waits_for_a_tree_of_chains(queue: Queue) -> None:
    """The leaf says what must be mended; closed blockers are left out."""
    await queue.worker("join")
    closed = await queue.client.start_chain(join, 0)
    await queue.client.cancel_chain(closed)
    leaf = await queue.client.start_chain(work, 1)
    middle = await queue.client.start_chain(join, 2, blockers=[leaf])
    top = await queue.client.start_chain(join, 3, blockers=[closed, middle])
    found = await queue.client.explain(top)
    assert [reason.text for reason in found.reasons] == ["waits for 1 open chain"]
    assert [one.chain_id for one in found.blockers] == [middle.id]
    [held] = found.leaves()
    assert (held.chain_id, held.causes) == (leaf.id, (Cause.NO_WORKER,))
    assert str(found).splitlines() == [
        f"chain {top.id} of type join: blocked",
        "  - waits for 1 open chain",
        f"    chain {middle.id} of type join: blocked",
        "      - waits for 1 open chain",
        f"        chain {leaf.id} of type work: ready",
        "          - no live worker handles type work: the live workers handle join",
    ]


async def test_it_failed_for_a_blocker_that_was_retried_since(queue: Queue) -> None:
    """Its error is of then; what has become of the blocker is said beside it."""
    blocker = await queue.client.start_chain(work, 1, id="blocker")
    chain = await queue.client.start_chain(join, 2, blockers=[blocker])
    await queue.store.finish([fail(await queue.claim())])
    [job] = await queue.store.claim(ask("join"))
    error = JobError("blocker_failed", "a chain failed", "BlockerFailedError")
    await queue.store.finish([Finish(job, FinishKind.FAIL, error=error)])
    assert (await queue.only(chain)).text.endswith(
        "BlockerFailedError: a chain failed; chain blocker is failed: "
        "queuert chains retry blocker --cascade retries it and what failed because of it"
    )
    await queue.client.retry_chain(blocker)
    assert (await queue.only(chain)).text.endswith(
        f"; chain blocker is open again: queuert chains retry {chain.id} makes this one wait for it"
    )
    assert (await queue.client.explain(chain)).blockers == ()
    await queue.store.finish([complete(await queue.claim())])
    assert (await queue.only(chain)).text.endswith(
        f"; what it waited for is completed now: queuert chains retry {chain.id} runs it again, unless one was deleted"
    )


async def cancelled(queue: Queue, *ids: str) -> None:
    await queue.client.cancel_chains(ids)


async def retried_in_vain(queue: Queue, *ids: str) -> None:
    await queue.client.retry_chains(ids)
    await queue.fail_work()


async def retried_and_completed(queue: Queue, *ids: str) -> None:
    await queue.client.retry_chains(ids)
    for claimed in await queue.store.claim(ask("work", limit=500)):
        await queue.store.finish([complete(claimed)])


async def retried(queue: Queue, *ids: str) -> None:
    await queue.client.retry_chains(ids)


async def retried_and_cancelled(queue: Queue, *ids: str) -> None:
    await queue.client.retry_chains(ids)
    await queue.client.cancel_chains(ids)


Act = Callable[..., Awaitable[None]]


@pytest.mark.parametrize("act", [None, retried_in_vain, retried_and_completed, retried, retried_and_cancelled])
@pytest.mark.parametrize("begins", ["failed", "cancelled", "failed below", "cancelled below"])
@pytest.mark.parametrize("count", [1, 2])
async def test_the_command_that_it_names_runs_a_chain_that_failed_for_a_blocker(
    queue: Queue, begins: str, act: Act | None, count: int
) -> None:
    """Whatever has become of the blockers since. The command is read as a shell and the command line read it."""
    causes = [(await queue.client.start_chain(work, n, id=f"cause {n}; 'x'")).id for n in range(3)]
    waits_for = causes
    if "below" in begins:
        waits_for = [(await queue.client.start_chain(join, 1, blockers=causes)).id]
    top = await queue.client.start_chain(join, 2, blockers=waits_for)
    if "cancelled" in begins:
        await cancelled(queue, *causes)
    await queue.fail_work()
    await queue.fail_joins()
    await queue.fail_joins()
    if act is not None:
        await act(queue, *causes[:count])
    [said] = (await queue.client.explain(top)).reasons
    await do(queue, said.text)
    # What it waits for is completed in turn: then it runs, and no blocker is left that is not completed.
    for type in ("work", "join"):
        for claimed in await queue.store.claim(ask(type, limit=500)):
            if claimed.chain_id != top.id:
                await queue.store.finish([complete(claimed)])
            else:
                await queue.store.finish([Finish(claimed, FinishKind.INTERRUPT)])
    assert {one.status for one in await queue.store.get_blockers(top.id)} == {ChainStatus.COMPLETED}
    [job] = await queue.store.get_jobs([top.id])
    assert job is not None
    assert job.status is JobStatus.READY


async def do(queue: Queue, text: str) -> None:
    """Do the command that a text names."""
    [command] = re.findall(r"queuert (chains retry .+?) (?:retries|runs|makes) ", text)
    args = build_parser().parse_args(shlex.split(command))
    await queue.client.retry_chains(args.ids, cascade=args.cascade)


async def test_many_blockers_that_have_closed_are_counted(queue: Queue) -> None:
    """Those that were cancelled are to be retried first, unless their type closes with its parent."""
    ids = [(await queue.client.start_chain(work, n, id=f"c{n:02}")).id for n in range(30)]
    top = await queue.client.start_chain(join, 2, blockers=ids)
    await queue.client.cancel_chains(ids[10:])
    await queue.fail_work()
    await queue.fail_joins()
    failed, cancelled = "chains c00, c01, c02 and 7 more are failed", "chains c10, c11, c12 and 17 more are cancelled"
    retry = f"queuert chains retry {top.id} --cascade"
    assert (await queue.only(top)).text.endswith(
        f"; {failed}, {cancelled}: retry all that are cancelled, and then {retry} retries this one"
    )
    await queue.worker(traits=(TypeTraits("work", closes_with_parent=True),))
    assert (await queue.only(top)).text.endswith(f"; {failed}, {cancelled}: {retry} retries this one with them")
    await do(queue, (await queue.only(top)).text)
    assert {one.status for one in await queue.store.get_blockers(top.id)} == {ChainStatus.OPEN}


async def test_chains_that_wait_for_each_other(queue: Queue) -> None:
    """A child waits for its parent: both say that nothing can end it but a person."""
    await queue.worker("join")
    parent = await queue.client.start_chain(join, 1)
    claimed = await claim_one(queue.store, "join")
    child = await queue.client.start_chain(join, 2, blockers=[parent])
    await queue.store.finish([Finish(claimed, FinishKind.WAIT, blockers=(child.id,))])
    for chain, other in ((parent, child), (child, parent)):
        found = await queue.client.explain(chain)
        [below] = found.blockers
        assert (found.causes, below.chain_id) == ((Cause.BLOCKED,), other.id)
        assert below.causes == (Cause.BLOCKED, Cause.WAITS_IN_CIRCLE)
        assert (
            below.reasons[1].text == f"chain {chain.id} waits for it in turn: neither can ever run; cancel one of them"
        )


async def test_a_child_behind_its_parent_in_the_order_of_their_key(queue: Queue) -> None:
    if Capability.ORDERED_KEYS not in queue.client.state.capabilities:
        pytest.skip("the store keeps no order")
    ordered = Limits(ordered=True)
    await queue.worker(limits={"work": ordered})
    parent = await queue.client.start_chain(work, 1, limit_key="ana")
    claimed = await queue.claim(ordered, limit=1)
    child = await queue.client.start_chain(work, 2, limit_key="ana")
    await queue.store.finish([Finish(claimed, FinishKind.WAIT, blockers=(child.id,))])
    [below] = (await queue.client.explain(parent)).blockers
    assert below.causes == (Cause.KEY_ORDER, Cause.WAITS_IN_CIRCLE)


async def test_the_job_that_the_chain_stands_at(queue: Queue) -> None:
    """Any job of the chain may be given."""
    chain = await queue.client.start_chain(order, 1)
    following = await queue.client.continue_chain(chain, work, 2)
    found = await queue.client.explain(chain)
    assert (found.chain_id, found.job_id, found.job_status) == (chain.id, following, JobStatus.READY)
    assert await queue.client.explain(following) == found
    assert str(found).splitlines()[0] == f"chain {chain.id} of type order, at job {following} of type work: ready"


async def test_an_unknown_id(queue: Queue) -> None:
    with pytest.raises(ChainNotFoundError, match="no-such"):
        await queue.client.explain("no-such")


async def test_a_deep_tree_is_cut(queue: Queue) -> None:
    chain = await queue.client.start_chain(join, 0)
    for depth in range(MAX_DEPTH + 2):
        chain = await queue.client.start_chain(join, depth, blockers=[chain])
    found = await queue.client.explain(chain)
    [last] = found.leaves()
    assert (_depth(found), last.more_blockers) == (MAX_DEPTH, 1)
    assert str(found).splitlines()[-1].strip() == "and 1 more open chain"


async def test_a_wide_tree_is_cut(queue: Queue) -> None:
    blockers = [await queue.client.start_chain(work, number) for number in range(MAX_CHAINS + 5)]
    found = await queue.client.explain(await queue.client.start_chain(join, 0, blockers=blockers))
    assert (len(found.blockers), found.more_blockers) == (MAX_CHAINS - 1, 6)


async def test_a_chain_that_is_waited_for_twice_is_explained_once(queue: Queue) -> None:
    shared = await queue.client.start_chain(work, 0)
    middles = [await queue.client.start_chain(join, number, blockers=[shared]) for number in range(2)]
    found = await queue.client.explain(await queue.client.start_chain(join, 9, blockers=middles))
    assert [len(one.blockers) for one in found.blockers] == [1, 0]
    assert [one.more_blockers for one in found.blockers] == [0, 1]


def _depth(explanation: Explanation) -> int:
    return 1 + max((_depth(one) for one in explanation.blockers), default=0)


async def test_reasons_that_cannot_be_read_are_left_out(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a wait that times out raises nothing else."""
    chain = await queue.client.start_chain(work, 1)
    assert list(await reasons_of(queue.store, JOB_TYPES, [chain.id, "deleted"])) == [chain.id]

    async def refuses() -> None:
        raise StateError("permission denied")

    monkeypatch.setattr(queue.store, "list_workers", refuses)
    assert await reasons_of(queue.store, JOB_TYPES, [chain.id]) == {}


async def test_a_wait_that_times_out_says_what_an_explanation_does(queue: Queue) -> None:
    """It knows the types of the client that clients complete, and names the chain that holds the others."""
    approve = JobType("approve", input=int, output=int, completed_by="client")
    async with AsyncClient(queue.client.state, JobTypes(work, join, approve), notify=InProcessNotify()) as client:
        leaf = await client.start_chain(approve, 1)
        middle = await client.start_chain(join, 2, blockers=[leaf])
        top = await client.start_chain(join, 3, blockers=[middle, await client.start_chain(work, 4)])
        await queue.worker("work", "join")
        with pytest.raises(WaitTimeoutError) as caught:
            await client.wait([leaf, top], timeout=0.001)
        [waiting] = (await client.explain(leaf)).reasons
    assert waiting.cause is Cause.WAITS_FOR_CLIENT
    assert caught.value.reasons == {
        leaf.id: waiting.text,
        top.id: f"waits for 2 open chains; chain {leaf.id} of type approve holds it: {waiting.text}",
    }


# --- what changes while it is read ------------------------------------------------------------------------------------


async def changed_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, read: str, change: Callable[[], Awaitable[object]]
) -> list[str]:
    """Do something right after the first read of this name by the client; return a list that gets the reads."""
    store: Any = await queue.client._open_store()
    original, reads = getattr(store, read), list[str]()

    async def changed(*given: Any, **options: Any) -> Any:
        found = await original(*given, **options)
        reads.append(read)
        if len(reads) == 1:
            await change()
        return found

    monkeypatch.setattr(store, read, changed)
    return reads


async def test_a_job_that_is_continued_while_it_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await queue.client.start_chain(order, 1)
    await queue.worker("order")

    async def go_on() -> None:
        await queue.client.continue_chain(chain, work, 2)

    await changed_once(queue, monkeypatch, "get_jobs", go_on)
    found = await queue.client.explain(chain)
    assert (found.job_type, found.job_status, found.causes) == ("work", JobStatus.READY, (Cause.NO_WORKER,))


async def test_a_chain_that_closes_while_it_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()

    async def close() -> None:
        await queue.store.finish([complete(await claim_one(queue.store))])

    reads = await changed_once(queue, monkeypatch, "get_wait_facts", close)
    found = await queue.client.explain(chain)
    assert (found.chain_status, found.causes, len(reads)) == (ChainStatus.COMPLETED, (Cause.CLOSED,), 2)


async def test_the_last_blocker_closes_while_it_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = await queue.client.start_chain(join, 1)
    chain = await queue.client.start_chain(work, 2, blockers=[blocker])
    await queue.worker()

    async def close() -> None:
        await queue.store.finish([complete(await claim_one(queue.store, "join"))])

    await changed_once(queue, monkeypatch, "get_wait_facts", close)
    assert await queue.causes(chain) == ["due"]


async def test_what_does_not_change_is_read_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await queue.client.start_chain(work, 1, run_at=after(hours=1))

    async def nothing() -> None: ...

    reads = await changed_once(queue, monkeypatch, "get_wait_facts", nothing)
    assert await queue.causes(chain) == ["scheduled", "no_worker"]
    assert len(reads) == 1


async def test_a_chain_ahead_that_is_deleted_while_it_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain that is explained is still there."""
    if Capability.ORDERED_KEYS not in queue.client.state.capabilities:
        pytest.skip("the store keeps no order")
    first, second = [await queue.client.start_chain(work, 1, limit_key="zoe") for _ in range(2)]
    await queue.worker(limits={"work": Limits(ordered=True)})
    store: Any = await queue.client._open_store()
    original = store.get_jobs

    async def deletes(ids: Any, **options: Any) -> Any:
        if list(ids) == [first.id]:
            await queue.client.cancel_chain(first)
            await queue.client.delete_chains([first])
        return await original(ids, **options)

    monkeypatch.setattr(store, "get_jobs", deletes)
    found = await queue.client.explain(second)
    assert (found.causes, found.blockers, found.more_blockers) == ((Cause.KEY_ORDER,), (), 0)


async def test_a_job_that_has_changed_each_time(queue: Queue) -> None:
    """It is not said that a worker takes it."""
    await queue.worker()
    chain = await queue.client.start_chain(work, 1)
    record, job, facts = await parts_of(queue, chain.id)
    around = Surroundings({}, await queue.store.list_workers())
    [reason] = reasons(record, replace(job, status=JobStatus.CONTINUED), facts, around, ())
    text = f"the chain has gone on while it was read: job {job.id} is continued; look again"
    assert reason == Reason(Cause.DUE, text)


async def test_a_stranded_job(queue: Queue) -> None:
    await queue.worker()
    blocker = await queue.client.start_chain(join, 1)
    chain = await queue.client.start_chain(work, 1, blockers=[blocker])
    around = Surroundings({}, await queue.store.list_workers())
    [reason] = reasons(*await parts_of(queue, chain.id), around, ())
    text = "is blocked, and no chain that it waits for is open: the maintenance of a worker releases it"
    assert reason == Reason(Cause.BLOCKED, text)
