"""Chains that are completed, step by step or at once, by somebody who is no worker; and who wait for a chain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import AbortReason, Attempt, ChainStatus, JobStatus, NewChain
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainCancelledError,
    ChainNotFoundError,
    JobFailedError,
    JobTypeMismatchError,
    PayloadError,
    UndeclaredContinuationError,
    WaitTimeoutError,
)
from queuert.observability.events import AttemptAborted, AttemptStarted
from tests.behaviours.support import World, echo, first, last, middle, number, text, total
from tests.worker.support import Gate, in_time


async def test_a_chain_of_one_job(world: World) -> None:
    """Completed without any worker: it has its output, nobody held it, and it cost no attempt."""
    chain = await world.caller.start_chain(number, 1)
    await world.caller.complete_chain(chain, 10)
    assert await world.caller.result(chain) == 10
    job = await world.caller.get_job(chain.id)
    assert (job.status, job.output, job.holder, job.attempt) == (JobStatus.COMPLETED, 10, None, 0)


async def test_a_chain_of_many_jobs(world: World) -> None:
    """Led from outside through all its jobs, in steps that look at what is there."""
    chain = await world.caller.start_chain(first, 1)
    second = await world.caller.continue_chain(chain, middle, 2, expecting=first)
    third = await world.caller.continue_chain(chain, last, 3, expecting=middle)
    await world.caller.complete_chain(chain, "done", expecting=last)
    assert await world.caller.result(chain) == "done"
    page = await world.caller.list_chain_jobs(chain)
    assert [(job.id, job.type, job.input) for job in page] == [
        (chain.id, "first", 1),
        (second, "middle", 2),
        (third, "last", 3),
    ]
    assert [job.status.value for job in page] == ["continued", "continued", "completed"]


async def test_a_chain_that_a_worker_brings_to_its_end(world: World) -> None:
    """An approval in the middle: what comes after is a worker's."""
    world.handles(last, by=lambda attempt: f"approved {attempt.input}")
    chain = await world.caller.start_chain(first, 1)
    async with world.worker():
        await world.caller.continue_chain(chain, last, 5, expecting=first)
        assert await world.caller.result(chain) == "approved 5"
    assert [event.type for event in world.log.of(AttemptStarted)] == ["last"]


async def test_only_declared_and_fitting_continuations(world: World) -> None:
    chain = await world.caller.start_chain(middle, 1)
    with pytest.raises(UndeclaredContinuationError):
        await world.caller.continue_chain(chain, first, 1)
    with pytest.raises(PayloadError):
        await world.caller.continue_chain(chain, last, "no number")
    with pytest.raises(PayloadError):
        await world.caller.complete_chain(chain, "no number")
    assert (await world.caller.get_job(chain.id)).status is JobStatus.READY
    assert world.count() == 1


async def test_what_has_closed_is_not_completed_again(world: World) -> None:
    chain = await world.caller.start_chain(number, 1)
    await world.caller.complete_chain(chain, 10)
    for again in (
        world.caller.complete_chain(chain, 11),
        world.caller.continue_chain(chain, last, 1),
    ):
        with pytest.raises(ChainAlreadyClosedError):
            await again
    assert await world.caller.result(chain) == 10


async def test_looking_changes_nothing(world: World) -> None:
    """What an approver reads first: the chain, its last job, and what it waits for."""
    blocker = await world.caller.start_chain(number, 1)
    chain = await world.caller.start_chain(total, "x", blockers=[blocker])
    before = world.rows("select * from queuert.job order by id")
    assert (await world.caller.get_chain(chain.id, total)).status is ChainStatus.OPEN
    assert (await world.caller.get_job(chain.id)).status is JobStatus.BLOCKED
    assert [one.status for one in await world.caller.get_blockers(chain.id)] == [ChainStatus.OPEN]
    assert world.rows("select * from queuert.job order by id") == before


async def test_a_running_handler_is_reported(world: World) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    world.handles(number, by=handler)
    chain = await world.caller.start_chain(number, 1)
    async with world.worker():
        attempt = await gate.next()
        await world.caller.complete_chain(chain, 10)
        await world.log.wait_for(AttemptAborted, job_id=chain.id)
        assert attempt.abort.reason is AbortReason.ALREADY_COMPLETED
        gate.open()
        assert await world.caller.result(await world.caller.start_chain(number, 2)) == 2
    assert await world.caller.result(chain) == 10, "the first output stays"


async def test_what_waited_for_it_is_released(world: World) -> None:
    world.handles(total, by=lambda attempt: sum(attempt.outputs_of(number)))
    blocker = await world.caller.start_chain(number, 1)
    chain = await world.caller.start_chain(total, "x", blockers=[blocker])
    async with world.worker():
        await world.caller.complete_chain(blocker, 41)
        assert await world.caller.result(chain) == 41


async def test_a_blocked_chain_is_completed_over_its_blockers(world: World) -> None:
    """Nothing happens to it when they close after all."""
    world.handles(number, total, by=echo)
    blocker = await world.caller.start_chain(number, 1)
    chain = await world.caller.start_chain(total, "x", blockers=[blocker])
    await world.caller.complete_chain(chain, 5)
    async with world.worker():
        assert await world.caller.result(blocker) == 1
        assert await world.caller.result(await world.caller.start_chain(number, 2)) == 2
    assert await world.caller.result(chain) == 5
    assert world.log.of(AttemptStarted, job_id=chain.id) == []


async def test_of_another_type_than_expected(world: World) -> None:
    chain = await world.caller.start_chain(first, 1)
    for wrong in (
        world.caller.complete_chain(chain, "x", expecting=last),
        world.caller.continue_chain(chain, last, 1, expecting=middle),
        world.caller.get_chain(chain.id, number),
    ):
        with pytest.raises(JobTypeMismatchError) as raised:
            await wrong
        assert raised.value.actual == "first"
    assert (await world.caller.get_job(chain.id)).status is JobStatus.READY


async def test_with_the_callers_own_writes(world: World) -> None:
    """An approval and the row that records it stand or fall together."""
    world.rows("create table approvals (chain text)")
    chain = await world.caller.start_chain(first, 1)

    async def approve(connection: Any) -> None:
        await world.caller.continue_chain(chain, last, 2, connection=connection)
        await world.caller.execute(connection, "insert into approvals values ('x')")

    async with world.caller.rolled_back() as connection:
        await approve(connection)
    assert (await world.caller.get_job(chain.id)).status is JobStatus.READY
    async with world.caller.transaction() as connection:
        await approve(connection)
    assert (await world.caller.get_job(chain.id)).status is JobStatus.CONTINUED
    assert world.rows("select count(*) from approvals") == [(1,)]


# --- wait -------------------------------------------------------------------------------------------------------------


async def test_a_chain_that_has_closed_before(world: World) -> None:
    """Waiting for it returns at once, with the result, and so it does again."""
    chain = await world.caller.start_chain(number, 1)
    await world.caller.complete_chain(chain, 10)
    for _ in range(2):
        closed = await world.caller.closed(chain, timeout=0.001)
        assert closed.status is ChainStatus.COMPLETED
        assert await world.caller.result(closed) == 10


async def test_chains_that_end_otherwise(world: World) -> None:
    """A wait returns them, and asking for the result says how they ended."""
    failed, cancelled = await world.caller.start_chains([NewChain(text, "a"), NewChain(text, "b")])
    world.handles(text, by=lambda attempt: attempt.fail("no good"))
    await world.caller.cancel_chain(cancelled, reason="nobody wants it")
    async with world.worker():
        closed = await world.caller.wait([failed, cancelled], timeout=20)
    assert [chain.status for chain in closed] == [ChainStatus.FAILED, ChainStatus.CANCELLED]
    with pytest.raises(JobFailedError, match="no good"):
        await world.caller.result(failed)
    with pytest.raises(ChainCancelledError, match="nobody wants it"):
        await world.caller.result(cancelled)


async def test_a_wait_in_vain_names_what_is_open(world: World) -> None:
    done, open_one = await world.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    await world.caller.complete_chain(done, 1)
    with pytest.raises(WaitTimeoutError) as raised:
        await world.caller.wait([done, open_one], timeout=0.05)
    assert raised.value.open_ids == (open_one.id,)
    await world.caller.complete_chain(open_one, 2)
    assert await world.caller.result(open_one) == 2, "it goes on, and can be waited for again"


async def test_a_chain_that_does_not_exist(world: World) -> None:
    chain = await world.caller.start_chain(number, 1)
    await world.caller.delete_chain(chain)
    with pytest.raises(ChainNotFoundError):
        await world.caller.result(chain)
    with pytest.raises(ChainNotFoundError):
        await world.caller.closed(chain)


async def test_who_waits_is_woken(wired: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not look for itself again where there are notifications."""
    chain = await wired.caller.start_chain(number, 1)
    client: Any = wired.caller.client
    store, looked = await client._opened(), asyncio.Event()
    look = store.closed_chains

    async def noted(ids: Any) -> Any:
        found = await look(ids)
        looked.set()
        return found

    monkeypatch.setattr(store, "closed_chains", noted)
    waiting = asyncio.create_task(wired.caller.result(chain))
    await in_time(looked.wait())
    assert not waiting.done()
    await wired.caller.complete_chain(chain, 10)
    assert await in_time(waiting) == 10
