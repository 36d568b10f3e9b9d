"""How long one closed chain is kept: counted from its closing, fixed by its first start."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError
from queuert.jobs import TtlUpdate
from queuert.state import AsyncStore
from queuert.state.types import Finish, FinishKind, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    LAST_ATTEMPT,
    claim_one,
    complete,
    error_of,
    fail,
    go_on,
    interrupt,
    job,
    read_chain,
    reap,
    retry,
    run_out,
    start,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.builders import cancel as cancelled
from queuert.testing.conformance.expiry import LONG, SOON, closed_chain, expired, pruned
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


async def _lasts(store: AsyncStore, id: str, seconds: float) -> None:
    """A chain expires so many seconds after it closed."""
    chain = await read_chain(store, id)
    assert chain.expires_at is not None
    assert chain.closed_at is not None
    assert abs((chain.expires_at - chain.closed_at).total_seconds() - seconds) < 1.0, chain


# --- what it counts from ----------------------------------------------------------------------------------------------


@case()
async def without_an_end(stores: Stores) -> None:
    """A chain without a TTL does not expire, open or closed."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    assert held.result_ttl is None
    assert (await read_chain(store, held.id)).expires_at is None
    await store.finish([complete(held)])
    assert (await read_chain(store, held.id)).expires_at is None


@case()
async def counts_from_the_closing(stores: Stores) -> None:
    """An open chain has no end, however short its TTL; it expires so long after its closing, in each way to close."""
    store = await stores.open()
    ways = (complete, fail, cancelled)
    claims = await started_and_claimed(store, len(ways), result_ttl=LONG)
    for way, held in zip(ways, claims, strict=True):
        assert held.result_ttl == LONG
        assert (await read_chain(store, held.id)).expires_at is None
        await store.finish([way(held)])
        await _lasts(store, held.id, LONG)


@case()
async def open_chains_do_not_expire(stores: Stores) -> None:
    """Attempts that end without closing the chain give it no end."""
    store = await stores.open()
    [held] = await started_and_claimed(store, result_ttl=SOON)
    for finish in (retry, interrupt):
        await store.finish([finish(held)])
        assert (await read_chain(store, held.id)).expires_at is None
        held = await claim_one(store)
    assert held.result_ttl == SOON


@case()
async def of_a_long_chain(stores: Stores) -> None:
    """The TTL is the chain's: each of its jobs knows it, and the last one's finish counts."""
    store = await stores.open()
    for finish in (complete, fail, cancelled):
        [held] = await started_and_claimed(store, result_ttl=LONG)
        for _ in range(2):
            await store.finish([go_on(held, job("next"))])
            assert (await read_chain(store, held.chain_id)).expires_at is None
            held = await claim_one(store, "next")
            assert held.result_ttl == LONG
        await store.finish([finish(held)])
        await _lasts(store, held.chain_id, LONG)


@case()
async def closed_from_outside(stores: Stores) -> None:
    """Cancelling and completing from outside close by the same TTL, also at a later job, and after a continuation."""
    store = await stores.open()
    first = await start(store, job(id="a", result_ttl=LONG), job(id="b", result_ttl=LONG), job(id="c", result_ttl=LONG))
    await store.cancel_chains(["a"], reason="not wanted")
    await store.complete_chains([WorkerlessCompletion("b", "b", output="1")])
    await store.complete_chains([WorkerlessCompletion("c", "c", continuation=job("next", id="c2"))])
    assert (await read_chain(store, "c")).expires_at is None
    held = await claim_one(store, "next")
    assert held.result_ttl == LONG
    await store.complete_chains([WorkerlessCompletion("c", "c2", continuation=job("next", id="c3"))])
    await store.complete_chains([WorkerlessCompletion("c", "c3", output="1")])
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await store.finish([go_on(held, job("next"))])
    await store.cancel_chains([held.id], reason="not wanted")
    for id in (*first, held.id):
        await _lasts(store, id, LONG)


@case()
async def failed_by_the_reaper(stores: Stores) -> None:
    """A chain whose last lease expired, at its first job or a later one, is kept as long as any other."""
    store = await stores.open()
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await run_out(store, held)
    await reap(store, LAST_ATTEMPT)
    await _lasts(store, held.id, LONG)
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await store.finish([go_on(held, job("next"))])
    await run_out(store, await claim_one(store, "next"))
    await reap(store, LAST_ATTEMPT, type="next")
    await _lasts(store, held.id, LONG)


@case()
async def chains_that_an_finish_starts(stores: Stores) -> None:
    """A chain that is started by a job that waits for it has its own TTL."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    child = job("child", result_ttl=LONG)
    await store.finish([Finish(held, FinishKind.WAIT, starts=(child,), blockers=(child.id,))])
    claimed = await claim_one(store, "child")
    assert claimed.result_ttl == LONG
    await store.finish([complete(claimed)])
    await _lasts(store, child.id, LONG)


# --- what changes it --------------------------------------------------------------------------------------------------


def _lasting(finish: Finish, seconds: float) -> Finish:
    return replace(finish, result_ttl=seconds)


@case()
async def the_finish_may_say_otherwise(stores: Stores) -> None:
    """A finish's own TTL counts instead of the chain's, or where that has none, for one job and for several."""
    store = await stores.open()
    for ttl in (None, 60.0):
        [held] = await started_and_claimed(store, result_ttl=ttl)
        await store.finish([_lasting(complete(held), LONG)])
        await _lasts(store, held.id, LONG)
        [held] = await started_and_claimed(store, result_ttl=ttl)
        await store.finish([go_on(held, job("next"))])
        await store.finish([_lasting(fail(await claim_one(store, "next")), LONG)])
        await _lasts(store, held.id, LONG)


@case()
async def each_finish_its_own(stores: Stores) -> None:
    """In one batch each chain is kept by its own TTL."""
    store = await stores.open()
    given = (None, 100.0, 10_000.0)
    ids = await start(store, *(job(result_ttl=ttl) for ttl in given))
    claims = [await claim_one(store) for _ in given]
    await store.finish([complete(claims[0]), _lasting(complete(claims[1]), 1_000.0), complete(claims[2])])
    assert (await read_chain(store, ids[0])).expires_at is None
    await _lasts(store, ids[1], 1_000.0)
    await _lasts(store, ids[2], 10_000.0)


@case()
async def retried_chains(stores: Stores) -> None:
    """A chain that is opened again has no end until it closes again, by the TTL of its start."""
    store = await stores.open()
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await store.finish([_lasting(fail(held), 60.0)])
    await store.retry_chains([held.id])
    assert (await read_chain(store, held.id)).expires_at is None
    await store.finish([go_on(await claim_one(store), job("next"))])
    await store.finish([fail(await claim_one(store, "next"))])
    await _lasts(store, held.id, LONG)
    await store.retry_chains([held.id])
    assert (await read_chain(store, held.id)).expires_at is None
    await store.finish([complete(await claim_one(store, "next"))])
    await _lasts(store, held.id, LONG)
    # One that stays open: a store whose indexes are looked at afterwards has nothing left of its end.
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await store.finish([fail(held)])
    await store.retry_chains([held.id])
    assert (await read_chain(store, held.id)).expires_at is None


@case()
async def updated(stores: Stores) -> None:
    """A closed chain's end is set anew, longer or shorter, and given to one that had none; an open one is told of."""
    store = await stores.open()
    closed = await closed_chain(store, ttl=60.0)
    endless = await closed_chain(store, ttl=None)
    [open_one] = await start(store, job(result_ttl=60.0))
    requested = [endless, open_one, "nowhere", closed, closed]
    assert await store.update_result_ttl(requested, LONG) == [
        TtlUpdate.UPDATED,
        TtlUpdate.OPEN,
        TtlUpdate.NOT_FOUND,
        TtlUpdate.UPDATED,
        TtlUpdate.UPDATED,
    ]
    await _lasts(store, closed, LONG)
    await _lasts(store, endless, LONG)
    assert (await read_chain(store, open_one)).expires_at is None
    assert await store.update_result_ttl([closed], SOON) == [TtlUpdate.UPDATED]
    await expired(store, closed)
    assert await store.update_result_ttl([closed], LONG) == [TtlUpdate.NOT_FOUND]
    assert await store.update_result_ttl([], LONG) == []


@case()
async def updated_by_a_jobs_id(stores: Stores) -> None:
    """The id of a later job is no chain's."""
    store = await stores.open()
    [held] = await started_and_claimed(store, result_ttl=LONG)
    await store.finish([go_on(held, job("next", id="later"))])
    await store.finish([complete(await claim_one(store, "next"))])
    assert await store.update_result_ttl(["later"], SOON) == [TtlUpdate.NOT_FOUND]
    await _lasts(store, held.id, LONG)


@case()
async def updates_that_are_refused(stores: Stores) -> None:
    """A TTL that is not above zero, or no number, is refused, and nothing changes."""
    store = await stores.open()
    closed = await closed_chain(store, ttl=LONG)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        await error_of(ConfigurationError, store.update_result_ttl([closed], seconds))
    await _lasts(store, closed, LONG)


@case()
async def one_chain_only(stores: Stores) -> None:
    """The end of one chain leaves all others as they were."""
    store = await stores.open()
    kept = await closed_chain(store, ttl=LONG)
    endless = await closed_chain(store, ttl=None)
    gone = await closed_chain(store, ttl=SOON)
    await expired(store, gone)
    assert (await read_chain(store, kept)).output == '"done"'
    assert (await read_chain(store, endless)).output == '"done"'


# --- the first start fixes it -----------------------------------------------------------------------------------------


@case()
async def duplicates_change_nothing(stores: Stores) -> None:
    """A start that finds its chain there, by id or by key, leaves that one's TTL as it was."""
    store = await stores.open()
    by_key = Deduplicate("key", scope="any")
    first = [job(id="a", attach=True, result_ttl=LONG), job(deduplication=by_key, result_ttl=LONG)]
    again = [job(id="a", attach=True, result_ttl=SOON), job(deduplication=by_key, result_ttl=SOON)]
    ids = await start(store, *first)
    assert await start(store, *again) == ids
    await store.finish([complete(await claim_one(store)), complete(await claim_one(store))])
    assert await start(store, *again) == ids
    for id in ids:
        await _lasts(store, id, LONG)


@case()
async def one_of_many_fixes_it(stores: Stores) -> None:
    """Of many starts of one id at once the one that is written decides, the first of a batch in that batch."""
    first, second = await stores.open_many(2)
    given = {100.0: first, 1_000.0: second}
    started = await asyncio.gather(
        *(store.start_jobs([job(id="a", attach=True, result_ttl=ttl)]) for ttl, store in given.items())
    )
    [winner] = [ttl for ttl, [one] in zip(given, started, strict=True) if not one.existing]
    held = await claim_one(first)
    assert held.result_ttl == winner
    await start(first, *(job(id="b", attach=True, result_ttl=ttl) for ttl in given))
    assert (await claim_one(first)).result_ttl == 100.0


# --- none at all ------------------------------------------------------------------------------------------------------


@case()
async def zero_is_gone_at_once(stores: Stores) -> None:
    """With a TTL of 0 a chain is there while it is open, and counts as deleted once it has closed, in whatever way."""
    store = await stores.open()
    for end in (complete, fail, cancelled):
        [held] = await started_and_claimed(store, id="mine", result_ttl=0.0, deduplication=Deduplicate("key"))
        assert held.result_ttl == 0
        await store.finish([retry(held)])
        held = await claim_one(store)
        assert (await read_chain(store, "mine")).expires_at is None
        await store.finish([end(held)])
        assert await store.get_chains(["mine"]) == [None]
        assert await store.closed_chains(["mine"]) == [None]
        assert await store.chains_of_key("work", "key", only_open=False) == []


@case()
async def zero_keeps_outputs_for_dependents(stores: Stores) -> None:
    """Jobs that wait for the chain get its output; it is pruned once they have finished, and at once without any."""
    store = await stores.open()
    [parent, alone] = await start(store, job("parent"), job(result_ttl=0.0))
    await store.finish([complete(await claim_one(store))])
    assert await pruned(store) == [alone]
    child = job(result_ttl=0.0)
    await store.finish([wait(await claim_one(store, "parent"), child)])
    await store.finish([complete(await claim_one(store), "5")])
    assert await store.get_chains([child.id]) == [None]
    assert await pruned(store) == []
    held = await claim_one(store, "parent")
    [blocker] = await store.get_blockers(parent)
    assert (blocker.chain_id, blocker.output) == (child.id, "5")
    await store.finish([complete(held)])
    assert await pruned(store) == [child.id]
    assert await store.get_jobs([child.id]) == [None]
