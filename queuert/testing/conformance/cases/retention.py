"""Which closed chains are deleted, by their own end and by the policy of their type, and which must stay."""

from __future__ import annotations

from queuert.deduplication import Deduplicate
from queuert.errors import InvalidCursorError
from queuert.jobs import JobStatus
from queuert.policies import Keep, Retention
from queuert.state.types import Finish, FinishKind, PruneRequest
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    eventually,
    fail,
    go_on,
    job,
    read,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.expiry import ALL_GO, LONG, SOON, closed_chains, pruned, there
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NONE = Keep(count=0)


# --- by their own end -------------------------------------------------------------------------------------------------


@case()
async def nothing_to_retire(stores: Stores) -> None:
    """Without a policy, chains that have no end, or whose end is to come, stay as they are."""
    store = await stores.open()
    ids = [*await closed_chains(store, complete, fail, cancel), *await closed_chains(store, complete, result_ttl=LONG)]
    ids += await start(store, job(), job(result_ttl=SOON), job(run_at=due_later()))
    result = await store.prune(PruneRequest())
    assert (list(result.chain_ids), result.cursor) == ([], None)
    assert await there(store, *ids) == ids


@case()
async def expired_chains_go(stores: Stores) -> None:
    """Chains whose time is over are deleted whatever their outcome, type and policy, with all their jobs."""
    store = await stores.open()
    ids = await closed_chains(store, complete, fail, cancel, result_ttl=SOON)
    [held] = await started_and_claimed(store, result_ttl=SOON)
    await store.finish([go_on(held, job("next", id="b"))])
    await store.finish([complete(await claim_one(store, "next"))])
    wanted = {*ids, held.id}
    [kept] = await closed_chains(store, complete)
    gone: set[str] = set()

    async def all_gone() -> bool:
        gone.update(await pruned(store, {"work": Retention(Keep(age=LONG), Keep(age=LONG))}))
        return gone >= wanted

    await eventually(all_gone)
    assert gone == wanted
    assert await there(store, *wanted, "b", kept) == [kept]


@case()
async def ids_and_keys_are_free_again(stores: Stores) -> None:
    """What was deleted can be started again by its id and its key."""
    store = await stores.open()
    key = Deduplicate("key", scope="any")
    [held] = await started_and_claimed(store, id="a", deduplication=key)
    await store.finish([complete(held)])
    assert await pruned(store, {"work": ALL_GO}) == ["a"]
    [started] = await store.start_jobs([job(id="a", deduplication=key)])
    assert (started.id, started.existing) == ("a", False)


# --- by the policy of their type --------------------------------------------------------------------------------------


@case()
async def by_outcome_and_type(stores: Stores) -> None:
    """Each outcome of each type goes by its own bound; what has none stays."""
    store = await stores.open()
    done, failed, cancelled = await closed_chains(store, complete, fail, cancel)
    others = await closed_chains(store, complete, fail, cancel, type="other")
    policies = {"work": Retention(completed=_NONE), "other": Retention(failed=_NONE, cancelled=_NONE)}
    assert set(await pruned(store, policies)) == {done, *others[1:]}
    assert await there(store, done, failed, cancelled, *others) == [failed, cancelled, others[0]]


@case()
async def by_age(stores: Stores) -> None:
    """Chains that closed longer ago than the age go, however long ago they were started; younger and open ones stay."""
    store = await stores.open()
    [old] = await closed_chains(store, complete)
    [running] = await started_and_claimed(store)
    assert await pruned(store, {"work": Retention(completed=Keep(age=LONG))}) == []

    async def gone() -> list[str]:
        return await pruned(store, {"work": Retention(completed=Keep(age=SOON))})

    assert await eventually(gone) == [old]
    assert await there(store, running.id) == [running.id]


@case()
async def by_count(stores: Stores) -> None:
    """The newest of an outcome stay, by when they were started; open ones and other outcomes are not counted."""
    store = await stores.open()
    failed = await closed_chains(store, fail, fail)
    done = await closed_chains(store, *[complete] * 5)
    running = await started_and_claimed(store, 3)
    policy = Retention(completed=Keep(count=2), failed=Keep(count=2))
    assert set(await pruned(store, {"work": policy})) == set(done[:3])
    assert await pruned(store, {"work": policy}) == []
    assert await there(store, *failed, *done) == [*failed, *done[3:]]
    await store.finish([complete(running[0])])
    assert await pruned(store, {"work": policy}) == [done[3]]


@case()
async def by_age_and_count(stores: Stores) -> None:
    """With both bounds a chain stays only within both."""
    store = await stores.open()
    ids = await closed_chains(store, complete, complete, complete)
    assert await pruned(store, {"work": Retention(completed=Keep(age=LONG, count=2))}) == ids[:1]
    gone: list[str] = []

    async def all_gone() -> bool:
        gone.extend(await pruned(store, {"work": Retention(completed=Keep(age=SOON, count=2))}))
        return len(gone) == 2

    await eventually(all_gone)
    assert set(gone) == set(ids[1:])


@case()
async def an_end_of_its_own_goes_first(stores: Stores) -> None:
    """A chain with a TTL stays by that, whatever the policy says, and counts as one of the newest."""
    store = await stores.open()
    [older] = await closed_chains(store, complete)
    [kept] = await closed_chains(store, complete, result_ttl=LONG)
    assert await pruned(store, {"work": Retention(completed=Keep(count=2))}) == []
    assert await pruned(store, {"work": Retention(completed=Keep(count=1))}) == [older]
    assert await pruned(store, {"work": ALL_GO}) == []
    assert await there(store, kept) == [kept]


@case()
async def only_chains_that_began_so(stores: Stores) -> None:
    """The policy is that of the chain's type, not of the job type that it ended with."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next"))])
    await store.finish([complete(await claim_one(store, "next"))])
    assert await pruned(store, {"next": ALL_GO}) == []
    assert await pruned(store, {"work": ALL_GO}) == [held.id]


# --- pages ------------------------------------------------------------------------------------------------------------


@case()
async def pages_make_the_whole(stores: Stores) -> None:
    """However few are looked at in one call, the cursor leads to all that are to go, past those that stay."""
    store = await stores.open()
    policies = {"work": Retention(completed=_NONE, failed=_NONE), "other": Retention(completed=Keep(count=1))}
    for limit in (1, 2, 3, 7):
        stay = [
            *await closed_chains(store, complete, complete),
            *await closed_chains(store, complete, fail, result_ttl=SOON),
        ]
        waiting = await start(store, *(job("waits", blockers=[id]) for id in stay))
        expired = await closed_chains(store, complete, complete, fail, result_ttl=SOON)
        done = await closed_chains(store, complete, fail, complete, fail)
        kept = await closed_chains(store, complete, result_ttl=LONG)
        others = await closed_chains(store, complete, complete, type="other")
        wanted = {*expired, *done, others[0]}
        gone: list[str] = []

        async def all_gone(limit: int = limit, gone: list[str] = gone, wanted: set[str] = wanted) -> bool:
            gone.extend(await pruned(store, policies, limit=limit))
            return set(gone) >= wanted

        await eventually(all_gone)
        assert sorted(gone) == sorted(wanted)
        left = [*stay, *kept, others[1]]
        assert await there(store, *left) == left
        await store.delete_chains([*waiting, *left])


@case()
async def no_more_than_requested(stores: Stores) -> None:
    """One call looks at no more than the limit, and its cursor says that there is more."""
    store = await stores.open()
    ids = await closed_chains(store, complete, complete, complete)
    result = await store.prune(PruneRequest({"work": ALL_GO}, limit=2))
    assert len(result.chain_ids) == 2
    assert result.cursor is not None
    rest = await store.prune(PruneRequest({"work": ALL_GO}, limit=2, cursor=result.cursor))
    assert {*result.chain_ids, *rest.chain_ids} == set(ids)
    assert rest.cursor is None


@case()
async def a_strange_cursor(stores: Stores) -> None:
    """What was not given out as a cursor is refused."""
    store = await stores.open()
    for cursor in ("", "nonsense", "[]", '["a", "b", "c", "d"]'):
        await error_of(InvalidCursorError, store.prune(PruneRequest(cursor=cursor)))


# --- what must stay ---------------------------------------------------------------------------------------------------


@case()
async def blockers_of_open_jobs_stay(stores: Stores) -> None:
    """A closed chain stays while a job that has it as a blocker has not ended, whatever that job is at."""
    store = await stores.open()
    [needed] = await closed_chains(store, complete)
    [open_one] = await start(store, job("never"))
    [waiting] = await start(store, job("waits", blockers=[needed, open_one]))
    policies = {"work": ALL_GO}
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    assert await pruned(store, policies) == []
    await store.cancel_chains([open_one], reason="not needed")
    assert (await read(store, waiting)).status is JobStatus.READY
    assert await pruned(store, policies) == []
    held = await claim_one(store, "waits")
    assert await pruned(store, policies) == []
    await store.finish([retry(held, 3_600.0)])
    assert (await read(store, waiting)).status is JobStatus.SCHEDULED
    assert await pruned(store, policies) == []
    await store.trigger_jobs([waiting])
    await store.finish([complete(await claim_one(store, "waits"))])
    assert await pruned(store, policies) == [needed]


@case()
async def expired_blockers_stay_as_well(stores: Stores) -> None:
    """So it does if it has expired: the job finds its output."""
    store = await stores.open()
    [needed] = await closed_chains(store, complete, result_ttl=SOON)
    [waiting] = await start(store, job("waits", blockers=[needed]))

    async def expired() -> bool:
        return await store.get_chains([needed]) == [None]

    await eventually(expired)
    assert await pruned(store) == []
    [blocker] = await store.get_blockers(waiting)
    assert (blocker.chain_id, blocker.output) == (needed, '"done"')
    await store.finish([complete(await claim_one(store, "waits"))])
    assert await pruned(store) == [needed]


@case()
async def jobs_that_ended_let_go(stores: Stores) -> None:
    """A chain goes from under jobs that have ended: they keep their number of blockers, and lose this one."""
    store = await stores.open()
    gone, kept = await closed_chains(store, complete, complete)
    await store.update_result_ttl([kept], LONG)
    waiting = await start(store, *(job("waits", blockers=[gone, kept]) for _ in range(4)))
    following = job("next")
    finishes = (complete, fail, cancel, lambda held: go_on(held, following))
    for finish in finishes:
        await store.finish([finish(await claim_one(store, "waits"))])
    assert await pruned(store, {"work": ALL_GO}) == [gone]
    for id in waiting:
        assert [one.chain_id for one in await store.get_blockers(id)] == [kept]
    [failed] = [id for id in waiting if (await read(store, id)).status is JobStatus.FAILED]
    await store.retry_chains([failed])
    assert (await claim_one(store, "waits")).blocker_count == 2


@case()
async def a_chain_and_its_blockers_at_once(stores: Stores) -> None:
    """Chains that waited for each other's outcome, and children with their parent, go in one call."""
    store = await stores.open()
    [parent] = await started_and_claimed(store)
    children = [job() for _ in range(3)]
    waits = Finish(parent, FinishKind.WAIT, starts=tuple(children), blockers=tuple(one.id for one in children))
    await store.finish([waits])
    for _ in range(4):
        await store.finish([complete(await claim_one(store))])
    assert (await read(store, parent.id)).status is JobStatus.COMPLETED
    assert set(await pruned(store, {"work": ALL_GO})) == {parent.id, *(one.id for one in children)}
    assert list(await store.count_jobs()) == []


@case()
async def opened_again(stores: Stores) -> None:
    """A chain that is open again stays, and so do its blockers."""
    store = await stores.open()
    [failed] = await closed_chains(store, fail, result_ttl=LONG)
    await store.retry_chains([failed])
    assert await pruned(store, {"work": ALL_GO}) == []
    assert await there(store, failed) == [failed]
