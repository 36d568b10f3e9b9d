"""Completing and continuing chains from outside, over the head of their last job."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.errors import ChainNotFoundError, InvalidIdentifierError, JobIdConflictError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import ChainUpdate, NewJob, Renewal, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    ask,
    check_chain_seconds,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    read,
    read_chain,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_ROUNDS = 25


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


async def _complete(store: AsyncStore, id: str, tail: str | None = None, output: str = '"outside"') -> ChainUpdate:
    [result] = await store.complete_chains([WorkerlessCompletion(id, tail or id, output=output)])
    return result


async def _continue(store: AsyncStore, id: str, following: NewJob, tail: str | None = None) -> ChainUpdate:
    [result] = await store.complete_chains([WorkerlessCompletion(id, tail or id, continuation=following)])
    return result


@case()
async def each_status_that_is_open(stores: Stores) -> None:
    """Blocked, scheduled, ready and running jobs are completed with the output; none is claimed any more."""
    store = await stores.open()
    [running] = await started_and_claimed(store)
    ids = await start(store, job(blockers=[running.id]), job(run_at=due_later()), job())
    every = [*ids, running.id]
    results = await store.complete_chains([WorkerlessCompletion(id, id, output=f'{{"of":"{id}"}}') for id in every])
    statuses = [JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.READY, JobStatus.RUNNING]
    assert [(one.chain_id, one.job_id, one.previous_status) for one in results] == [
        (id, id, status) for id, status in zip(every, statuses, strict=True)
    ]
    assert all(one.written and one.status is ChainStatus.COMPLETED for one in results)
    for id in every:
        found, chain = await read(store, id), await read_chain(store, id)
        assert (found.status, found.output) == (JobStatus.COMPLETED, {"of": id})
        assert found.finished_at is not None and found.lease_expires_at is None
        assert chain.status is ChainStatus.COMPLETED and chain.closed_at is not None and chain.error is None
    assert await store.claim(ask()) == []


@case()
async def tells_the_age_of_the_chain(stores: Stores) -> None:
    """The results say how long the chains took that were completed, of one job and of several; not of continued ones,
    nor of any if nothing is written."""
    store = await stores.open()
    alone, long, open_one = await start(store, job(), job(), job())
    assert (await _continue(store, long, job("next", id="b"))).chain_seconds is None
    completions = [WorkerlessCompletion(alone, alone, output="1"), WorkerlessCompletion(long, "b", output="2")]
    continuation = WorkerlessCompletion(open_one, open_one, continuation=job("next"))
    results = await store.complete_chains([*completions, continuation])
    assert all(one.written for one in results)
    await check_chain_seconds(store, alone, results[0].chain_seconds)
    await check_chain_seconds(store, long, results[1].chain_seconds)
    assert results[2].chain_seconds is None
    late = await store.complete_chains(completions)
    assert [(one.written, one.chain_seconds) for one in late] == [(False, None), (False, None)]


@case()
async def clears_the_last_error(stores: Stores) -> None:
    """The error of an attempt before is gone; the attempts are not."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([retry(held, delay=3600.0)])
    assert (await _complete(store, held.id)).previous_status is JobStatus.SCHEDULED
    found = await read(store, held.id)
    assert (found.last_error, found.attempt) == (None, 1)


@case()
async def holder_learns_why(stores: Stores) -> None:
    """A running attempt is refused everything, with the reason ALREADY_COMPLETED, and the first output stays."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    await _complete(store, held.id)
    await _continue(store, other.id, job("next"))
    for one in (held, other):
        assert await store.renew([Renewal(one.lease, 60.0)]) == [False]
        assert await store.lost_reasons([one.lease]) == [AbortReason.ALREADY_COMPLETED]
        for finish in (complete(one), fail(one), go_on(one, job())):
            assert (await store.finish([finish]))[0].lost is AbortReason.ALREADY_COMPLETED
    assert (await read(store, held.id)).output == "outside"
    assert len(await store.claim(ask("work", "next"))) == 1


@case()
async def several_steps(stores: Stores) -> None:
    """A chain is led through its jobs from outside, without any worker, to its output."""
    store = await stores.open()
    [id] = await start(store, job("first", priority=3))
    following = job("second", id="b", priority=5, input='{"n":2}', limit_key="key")
    result = await _continue(store, id, following)
    assert (result.written, result.status, result.due_types) == (True, ChainStatus.OPEN, ("second",))
    first, second = await read(store, id), await read(store, "b")
    assert (first.status, first.continued_by, first.output) == (JobStatus.CONTINUED, "b", None)
    assert (second.chain_id, second.chain_index, second.type) == (id, 1, "second")
    assert (second.input, second.priority, second.limit_key) == ({"n": 2}, 5, "key")
    assert (await _continue(store, id, job("third", id="c", run_at=due_later()), "b")).due_types == ("third",)
    assert (await read(store, "c")).status is JobStatus.SCHEDULED
    assert (await read_chain(store, id)).status is ChainStatus.OPEN
    last = await _complete(store, id, "c", "42")
    assert (last.job_type, last.chain_type, last.status) == ("third", "first", ChainStatus.COMPLETED)
    chain = await read_chain(store, id)
    assert (chain.output, chain.tail_id, chain.tail_type) == ("42", "c", "third")
    assert await store.claim(ask("first", "second", "third")) == []


@case()
async def worker_goes_on(stores: Stores) -> None:
    """What was continued from outside is claimed and finished by a worker as any other job."""
    store = await stores.open()
    [id] = await start(store, job(run_at=due_later()))
    await _continue(store, id, job("next"))
    claimed = await claim_one(store, "next")
    assert (claimed.chain_id, claimed.chain_index, claimed.attempt) == (id, 1, 1)
    assert (await store.finish([complete(claimed, "1")]))[0].written
    assert (await read_chain(store, id)).output == "1"


@case()
async def releases_dependents(stores: Stores) -> None:
    """What waited for a chain is released by its completion, and not by a continuation."""
    store = await stores.open()
    [id] = await start(store, job())
    [waiting] = await start(store, job("waits", blockers=[id]))
    assert (await _continue(store, id, job("next", id="b"))).due_types == ("next",)
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    assert (await _complete(store, id, "b")).due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == waiting


@case()
async def blocked_one_is_not_released(stores: Stores) -> None:
    """A blocked job that was completed, or continued, is not run when what it waited for closes."""
    store = await stores.open()
    held, later = await started_and_claimed(store, 2)
    both = [held.id, later.id]
    completed, continued = await start(store, job("waits", blockers=both), job("waits", blockers=both))
    await store.finish([complete(held)])
    await _complete(store, completed)
    await _continue(store, continued, job("next"))
    await store.finish([complete(later)])
    for id, status in ((completed, JobStatus.COMPLETED), (continued, JobStatus.CONTINUED)):
        found = await read(store, id)
        assert (found.status, found.open_blockers) == (status, 0)
    assert [one.type for one in await store.claim(ask("waits", "next"))] == ["next"]


@case()
async def continuation_with_blockers(stores: Stores) -> None:
    """A continuation waits for its open blockers, and is released by them; closed ones do not count."""
    store = await stores.open()
    held, done = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    one, two = await start(store, job("first"), job("first"))
    blocked = await _continue(store, one, job("waits", id="b", blockers=[held.id, done.id]))
    assert blocked.due_types == ()
    assert (await _continue(store, two, job("waits", id="c", blockers=[done.id]))).due_types == ("waits",)
    found = await read(store, "b")
    assert (found.status, found.open_blockers) == (JobStatus.BLOCKED, 1)
    assert [one.id for one in await store.claim(ask("waits"))] == ["c"]
    assert (await store.finish([complete(held)]))[0].due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == "b"


@case()
async def closed_chain(stores: Stores) -> None:
    """A chain that has closed is not completed again: nothing is written, for it nor for the others of the call."""
    store = await stores.open()
    held = await started_and_claimed(store, 2)
    await store.finish([complete(held[0]), fail(held[1])])
    [open_one] = await start(store, job())
    for one, status in zip(held, ("completed", "failed"), strict=True):
        results = await store.complete_chains(
            [WorkerlessCompletion(open_one, open_one, output="1"), WorkerlessCompletion(one.id, one.id, output="1")]
        )
        assert [(result.written, result.status.value) for result in results] == [(False, "open"), (False, status)]
        assert results[1].previous_status.final
    assert (await read(store, open_one)).status is JobStatus.READY
    assert (await read(store, held[0].id)).output == "done"


@case()
async def others_are_cancelled_with_it(stores: Stores) -> None:
    """Chains that go on for nothing then: in the same transaction, with the reason; those that are closed stay so."""
    store = await stores.open()
    children = await start(store, job("child"), job("child"), job("child"))
    await store.cancel_chains([children[2]], reason="before")
    parent, other = await start(store, job(blockers=children[:2]), job(blockers=[children[1]]))
    results = await store.complete_chains(
        [WorkerlessCompletion(parent, parent, output="1")], cancel=[*children, children[0]], reason="with its parent"
    )
    assert [(one.chain_id, one.status.value, one.written) for one in results] == [
        (parent, "completed", True),
        (children[0], "cancelled", True),
        (children[1], "cancelled", True),
        (children[2], "cancelled", False),
    ]
    reasons = [chain.error.message for id in children if (chain := await read_chain(store, id)).error]
    assert reasons == ["with its parent", "with its parent", "before"]
    assert (await read(store, other)).status is JobStatus.READY
    assert [type for one in results for type in one.due_types] == ["work"]
    assert (await read(store, parent)).status is JobStatus.COMPLETED


@case()
async def others_are_cancelled_with_a_continuation(stores: Stores) -> None:
    """So it is if the chain goes on."""
    store = await stores.open()
    [child] = await start(store, job("child"))
    [parent] = await start(store, job(blockers=[child]))
    following = WorkerlessCompletion(parent, parent, continuation=job("next", id="b"))
    results = await store.complete_chains([following], cancel=[child], reason="x")
    assert [(one.status.value, one.written) for one in results] == [("open", True), ("cancelled", True)]
    assert ((await read(store, "b")).status, (await read(store, child)).status) == (
        JobStatus.READY,
        JobStatus.CANCELLED,
    )


@case()
async def a_continuation_may_keep_an_output(stores: Stores) -> None:
    """With the job that is continued, such as who decided; the chain has none yet. Without one there is none."""
    store = await stores.open()
    [chain, other] = await start(store, job(), job())
    kept = {"by": "ada"}
    await store.complete_chains(
        [
            WorkerlessCompletion(chain, chain, output='{"by":"ada"}', continuation=job("next", id="b")),
            WorkerlessCompletion(other, other, continuation=job("next", id="c")),
        ]
    )
    assert [(one.status, one.output) for one in (await read(store, chain), await read(store, other))] == [
        (JobStatus.CONTINUED, kept),
        (JobStatus.CONTINUED, None),
    ]
    assert (await read_chain(store, chain)).output is None
    await _complete(store, chain, "b")
    assert ((await read(store, chain)).output, (await read_chain(store, chain)).output) == (kept, '"outside"')


@case()
async def nothing_is_cancelled_if_nothing_is_completed(stores: Stores) -> None:
    """Neither beside a chain that is closed, or is elsewhere, nor beside one that does not exist."""
    store = await stores.open()
    child, parent, closed = await start(store, job("child"), job(), job())
    await store.cancel_chains([closed], reason="before")
    for completion in (WorkerlessCompletion(closed, closed, output="1"), WorkerlessCompletion(parent, "b", output="1")):
        [result] = await store.complete_chains([completion], cancel=[child], reason="x")
        assert not result.written
    good = WorkerlessCompletion(parent, parent, output="1")
    error = await error_of(ChainNotFoundError, store.complete_chains([good], cancel=[child, "nowhere"], reason="x"))
    assert error.id == "nowhere"
    await error_of(InvalidIdentifierError, store.complete_chains([good], cancel=[parent], reason="x"))
    assert [(await read(store, id)).status for id in (child, parent)] == [JobStatus.READY] * 2


@case()
async def another_last_job(stores: Stores) -> None:
    """A chain that has gone on to another job than the caller saw is not touched; the result names its last job."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="b"))])
    for seen in (held.id, "never"):
        result = await _complete(store, held.id, seen)
        assert (result.written, result.job_id, result.previous_status) == (False, "b", JobStatus.READY)
    assert (await read(store, "b")).status is JobStatus.READY


@case()
async def missing_chain(stores: Stores) -> None:
    """A chain or a blocker that does not exist is an error, and nothing is written; so is a chain given twice."""
    store = await stores.open()
    [id] = await start(store, job())
    good = WorkerlessCompletion(id, id, output="1")
    bad = WorkerlessCompletion("nowhere", "nowhere", output="1")
    assert (await error_of(ChainNotFoundError, store.complete_chains([good, bad]))).id == "nowhere"
    waits = _continue(store, id, job(blockers=["nobody"]))
    assert (await error_of(ChainNotFoundError, waits)).id == "nobody"
    await error_of(InvalidIdentifierError, store.complete_chains([good, good]))
    assert (await read(store, id)).status is JobStatus.READY
    assert await store.complete_chains([]) == []


@case()
async def id_that_exists(stores: Stores) -> None:
    """A continuation's chosen id that exists is an error, and nothing is written."""
    store = await stores.open()
    [id, taken] = await start(store, job(), job(id="taken"))
    assert (await error_of(JobIdConflictError, _continue(store, id, job(id=taken)))).ids == (taken,)
    assert (await read(store, id)).status is JobStatus.READY


@case(Capability.USER_TRANSACTIONS)
async def callers_transaction(stores: Stores) -> None:
    """On the caller's connection it stands with the commit, and is gone with a rollback; an error spoils nothing."""
    store = await stores.open()
    [id] = await start(store, job())
    [waiting] = await start(store, job("waits", blockers=[id]))
    completion = WorkerlessCompletion(id, id, output="1")
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.complete_chains([completion], connection=connection)
            raise _OnPurpose
    assert [(await read(store, one)).status.value for one in (id, waiting)] == ["ready", "blocked"]
    conflict = WorkerlessCompletion(id, id, continuation=job(id=waiting))
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "mine")
        await error_of(JobIdConflictError, store.complete_chains([conflict], connection=connection))
        [result] = await store.complete_chains([completion], connection=connection)
        assert result.written
        assert (await read(store, id)).status is JobStatus.READY
    assert [(await read(store, one)).status.value for one in (id, waiting)] == ["completed", "ready"]
    assert await stores.user_data.keys() == {"mine"}


@case(Capability.USER_TRANSACTIONS)
async def waits_for_the_holders_transaction(stores: Stores) -> None:
    """A completion that comes while the holder's transaction is open waits for it, and finds the chain closed."""
    store, other = await stores.open_many(2)
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        outside = asyncio.create_task(_complete(other, held.id))
        await transaction.finish(complete(held))
    assert not (await outside).written
    assert (await read(store, held.id)).output == "done"


@case()
async def against_finish(stores: Stores) -> None:
    """The holder's finish and a completion from outside at once: one of them has the job, and both know who."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        [finished], outside = await asyncio.gather(store.finish([complete(held)]), _complete(other, held.id))
        assert finished.written != outside.written
        assert (await read(store, held.id)).output == ("done" if finished.written else "outside")


@case()
async def against_another(stores: Stores) -> None:
    """Four completions of one chain at once: one is written, the others find it closed."""
    several = await stores.open_many(4)
    for _ in range(_ROUNDS):
        [id] = await start(several[0], job())
        results = await asyncio.gather(
            *(_complete(store, id, output=str(place)) for place, store in enumerate(several))
        )
        [place] = [place for place, one in enumerate(results) if one.written]
        assert (await read(several[0], id)).output == place
        assert {one.status for one in results} == {ChainStatus.COMPLETED}


@case()
async def continuations_against_each_other(stores: Stores) -> None:
    """Two continuations of one job at once: one is written, and the chain has one next job."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [id] = await start(store, job("first"))
        results = await asyncio.gather(_continue(store, id, job()), _continue(other, id, job()))
        assert sorted(one.written for one in results) == [False, True]
        [claimed] = await store.claim(ask())
        await store.finish([complete(claimed)])
