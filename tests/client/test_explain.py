"""Why a job does not run: each cause, on each store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from queuert import AsyncChain, AsyncClient, JobType, JobTypes, Limits, Rate, after
from queuert.client.async_explaining import reasons_of
from queuert.errors import ChainNotFoundError, StateError
from queuert.explanations import MAX_CHAINS, MAX_DEPTH, Cause, Explanation, Reason, Surroundings, reasons
from queuert.jobs import ChainStatus, JobError, JobStatus
from queuert.limits import TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability, StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.sqlite import SQLiteState
from queuert.state.steps import EventWait, NewStep
from queuert.state.types import ClaimedJob, Finish, FinishKind
from queuert.testing.conformance.builders import ask, claim_one, complete, expire, fail
from queuert.workers import WorkerHeartbeat, WorkerState

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
    reason = await queue.only(chain)
    assert (reason.cause, reason.text) == (
        Cause.NO_WORKER,
        "no live worker handles type work: the live workers handle join, mail, work",
    )


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


async def after_silence(queue: Queue, chain: AsyncChain[Any], seconds: float) -> list[Reason]:
    """What holds a chain, if the workers wrote their last heartbeats so long ago."""
    [record] = await queue.store.get_chains([chain.id])
    [job] = await queue.store.get_jobs([chain.id])
    facts = await queue.store.get_wait_facts(chain.id)
    assert record is not None
    assert job is not None
    assert facts is not None
    seen_at = facts.now - timedelta(seconds=seconds)
    around = Surroundings({}, [replace(one, seen_at=seen_at) for one in await queue.store.list_workers()])
    return reasons(record, job, facts, around, 0)


async def test_its_workers_were_killed(queue: Queue) -> None:
    """It is known before they are no longer listed: their heartbeats are overdue."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker()
    assert [one.cause for one in await after_silence(queue, chain, 20)] == [Cause.DUE]
    [reason] = await after_silence(queue, chain, 40)
    assert reason.cause is Cause.WORKERS_SILENT
    assert reason.text.startswith("its workers were last heard of 40 s ago, and write every 20 s: they have died")


async def test_no_reaper_is_left(queue: Queue) -> None:
    """The worker whose lease has expired was the only one: nobody takes the job."""
    chain = await queue.client.start_chain(work, 1)
    await queue.worker(id="killed")
    await expire(queue.store, await queue.claim(holder="killed"))
    [reason] = await after_silence(queue, chain, 0)
    assert reason.cause is Cause.LEASE_EXPIRED
    assert reason.text.endswith("; no other worker of its type is there to take the job")
    await queue.worker(id="another")
    [reason] = await after_silence(queue, chain, 0)
    assert reason.text.endswith("; a reaper takes the job next")
    expired, silent = await after_silence(queue, chain, 40)
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
    assert list(await reasons_of(queue.store, [chain.id, "deleted"])) == [chain.id]

    async def refuses() -> None:
        raise StateError("permission denied")

    monkeypatch.setattr(queue.store, "list_workers", refuses)
    assert await reasons_of(queue.store, [chain.id]) == {}
