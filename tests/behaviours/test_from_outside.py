"""Chains that are completed, step by step or at once, by somebody who is no worker; and who wait for a chain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainCancelledError,
    ChainNotFoundError,
    ConfigurationError,
    JobFailedError,
    JobTypeMismatchError,
    PayloadError,
    UndeclaredContinuationError,
    WaitTimeoutError,
)
from queuert.jobs import AbortReason
from queuert.observability.events import AttemptAborted, AttemptStarted
from tests.behaviours.support import CallerHarness
from tests.support.job_types import echo, first, last, middle, number, text, total
from tests.support.waiting import WAIT, Gate, in_time


async def test_a_chain_of_one_job(caller_harness: CallerHarness) -> None:
    """Completed without any worker: it has its output, nobody held it, and it cost no attempt."""
    chain = await caller_harness.caller.start_chain(number, 1)
    await caller_harness.caller.complete_chain(chain, 10)
    assert await caller_harness.caller.result(chain) == 10
    job = await caller_harness.caller.get_job(chain.id)
    assert (job.status, job.output, job.holder, job.attempt) == (JobStatus.COMPLETED, 10, None, 0)


async def test_a_chain_of_many_jobs(caller_harness: CallerHarness) -> None:
    """Led from outside through all its jobs, in steps that look at what is there."""
    chain = await caller_harness.caller.start_chain(first, 1)
    second = await caller_harness.caller.continue_chain(chain, middle, 2, expecting=first)
    third = await caller_harness.caller.continue_chain(chain, last, 3, expecting=middle)
    await caller_harness.caller.complete_chain(chain, "done", expecting=last)
    assert await caller_harness.caller.result(chain) == "done"
    page = await caller_harness.caller.list_chain_jobs(chain)
    assert [(job.id, job.type, job.input) for job in page] == [
        (chain.id, "first", 1),
        (second, "middle", 2),
        (third, "last", 3),
    ]
    assert [job.status.value for job in page] == ["continued", "continued", "completed"]


async def test_a_chain_that_a_worker_brings_to_its_end(caller_harness: CallerHarness) -> None:
    """An approval in the middle: what comes after is a worker's."""
    caller_harness.handles(last, lambda attempt: f"approved {attempt.input}")
    chain = await caller_harness.caller.start_chain(first, 1)
    async with caller_harness.worker():
        await caller_harness.caller.continue_chain(chain, last, 5, expecting=first)
        assert await caller_harness.caller.result(chain) == "approved 5"
    assert [event.type for event in caller_harness.log.of(AttemptStarted)] == ["last"]


async def test_the_next_job_inherits_the_limit_key_if_the_caller_says_so(caller_harness: CallerHarness) -> None:
    """As the continuation of a handler does."""
    caller = caller_harness.caller
    chain = await caller.start_chain(first, 1, limit_key="tenant")
    second = await caller.continue_chain(chain, middle, 2, inherit=["limit_key"])
    third = await caller.continue_chain(chain, last, 3)
    assert [(await caller.get_job(id)).limit_key for id in (chain.id, second, third)] == ["tenant", "tenant", None]
    own = await caller.start_chain(first, 1, limit_key="tenant")
    second = await caller.continue_chain(own, middle, 2, limit_key="own", inherit=["limit_key"])
    assert (await caller.get_job(second)).limit_key == "own"
    with pytest.raises(ConfigurationError, match="inherit must be a sequence of 'limit_key', got 'limit_key'"):
        await caller.continue_chain(own, last, 3, inherit="limit_key")


async def test_only_declared_and_fitting_continuations(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(middle, 1)
    with pytest.raises(UndeclaredContinuationError):
        await caller_harness.caller.continue_chain(chain, first, 1)
    with pytest.raises(PayloadError):
        await caller_harness.caller.continue_chain(chain, last, "no number")
    with pytest.raises(PayloadError):
        await caller_harness.caller.complete_chain(chain, "no number")
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.READY
    assert caller_harness.count() == 1


async def test_what_has_closed_is_not_completed_again(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1)
    await caller_harness.caller.complete_chain(chain, 10)
    for again in (
        caller_harness.caller.complete_chain(chain, 11),
        caller_harness.caller.continue_chain(chain, last, 1),
    ):
        with pytest.raises(ChainAlreadyClosedError):
            await again
    assert await caller_harness.caller.result(chain) == 10


async def test_looking_changes_nothing(caller_harness: CallerHarness) -> None:
    """What an approver reads first: the chain, its last job, and what it waits for."""
    blocker = await caller_harness.caller.start_chain(number, 1)
    chain = await caller_harness.caller.start_chain(total, "x", blockers=[blocker])
    before = caller_harness.rows("select * from queuert.job order by id")
    assert (await caller_harness.caller.get_chain(chain.id, total)).status is ChainStatus.OPEN
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.BLOCKED
    assert [one.status for one in await caller_harness.caller.get_blockers(chain.id)] == [ChainStatus.OPEN]
    assert caller_harness.rows("select * from queuert.job order by id") == before


async def test_a_running_handler_is_reported(caller_harness: CallerHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    caller_harness.handles(number, handler)
    chain = await caller_harness.caller.start_chain(number, 1)
    async with caller_harness.worker():
        attempt = await gate.next()
        await caller_harness.caller.complete_chain(chain, 10)
        await caller_harness.log.wait_for(AttemptAborted, job_id=chain.id)
        assert attempt.abort.reason is AbortReason.ALREADY_COMPLETED
        gate.open()
        assert await caller_harness.caller.result(await caller_harness.caller.start_chain(number, 2)) == 2
    assert await caller_harness.caller.result(chain) == 10, "the first output stays"


async def test_what_waited_for_it_is_released(caller_harness: CallerHarness) -> None:
    caller_harness.handles(total, lambda attempt: sum(attempt.outputs_of(number)))
    blocker = await caller_harness.caller.start_chain(number, 1)
    chain = await caller_harness.caller.start_chain(total, "x", blockers=[blocker])
    async with caller_harness.worker():
        await caller_harness.caller.complete_chain(blocker, 41)
        assert await caller_harness.caller.result(chain) == 41


async def test_a_blocked_chain_is_completed_over_its_blockers(caller_harness: CallerHarness) -> None:
    """Nothing happens to it when they close after all."""
    caller_harness.handles(number, echo)
    caller_harness.handles(total, echo)
    blocker = await caller_harness.caller.start_chain(number, 1)
    chain = await caller_harness.caller.start_chain(total, "x", blockers=[blocker])
    await caller_harness.caller.complete_chain(chain, 5)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(blocker) == 1
        assert await caller_harness.caller.result(await caller_harness.caller.start_chain(number, 2)) == 2
    assert await caller_harness.caller.result(chain) == 5
    assert caller_harness.log.of(AttemptStarted, job_id=chain.id) == []


async def test_of_another_type_than_expected(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(first, 1)
    for wrong in (
        caller_harness.caller.complete_chain(chain, "x", expecting=last),
        caller_harness.caller.continue_chain(chain, last, 1, expecting=middle),
        caller_harness.caller.get_chain(chain.id, number),
    ):
        with pytest.raises(JobTypeMismatchError) as raised:
            await wrong
        assert raised.value.actual == "first"
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.READY


async def test_with_the_callers_own_writes(caller_harness: CallerHarness) -> None:
    """An approval and the row that records it stand or fall together."""
    caller_harness.rows("create table approvals (chain text)")
    chain = await caller_harness.caller.start_chain(first, 1)

    async def approve(connection: Any) -> None:
        await caller_harness.caller.continue_chain(chain, last, 2, connection=connection)
        await caller_harness.caller.execute(connection, "insert into approvals values ('x')")

    async with caller_harness.caller.rolled_back() as connection:
        await approve(connection)
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.READY
    async with caller_harness.caller.transaction() as connection:
        await approve(connection)
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.CONTINUED
    assert caller_harness.rows("select count(*) from approvals") == [(1,)]


# --- wait -------------------------------------------------------------------------------------------------------------


async def test_a_chain_that_has_closed_before(caller_harness: CallerHarness) -> None:
    """Waiting for it returns at once, with the result, and so it does again."""
    chain = await caller_harness.caller.start_chain(number, 1)
    await caller_harness.caller.complete_chain(chain, 10)
    for _ in range(2):
        closed = await caller_harness.caller.closed(chain, timeout=0.001)
        assert closed.status is ChainStatus.COMPLETED
        assert await caller_harness.caller.result(closed) == 10


async def test_chains_that_end_otherwise(caller_harness: CallerHarness) -> None:
    """A wait returns them, and asking for the result says how they ended."""
    failed, cancelled = await caller_harness.caller.start_chains([NewChain(text, "a"), NewChain(text, "b")])
    caller_harness.handles(text, lambda attempt: attempt.fail("no good"))
    await caller_harness.caller.cancel_chain(cancelled, reason="nobody wants it")
    async with caller_harness.worker():
        closed = await caller_harness.caller.wait([failed, cancelled], timeout=WAIT)
    assert [chain.status for chain in closed] == [ChainStatus.FAILED, ChainStatus.CANCELLED]
    with pytest.raises(JobFailedError, match="no good"):
        await caller_harness.caller.result(failed)
    with pytest.raises(ChainCancelledError, match="nobody wants it"):
        await caller_harness.caller.result(cancelled)


async def test_a_wait_in_vain_names_what_is_open(caller_harness: CallerHarness) -> None:
    done, open_one = await caller_harness.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    await caller_harness.caller.complete_chain(done, 1)
    with pytest.raises(WaitTimeoutError) as raised:
        await caller_harness.caller.wait([done, open_one], timeout=0.05)
    assert raised.value.open_ids == (open_one.id,)
    await caller_harness.caller.complete_chain(open_one, 2)
    assert await caller_harness.caller.result(open_one) == 2, "it goes on, and can be waited for again"


async def test_a_chain_that_does_not_exist(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1)
    await caller_harness.caller.delete_chain(chain)
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.result(chain)
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.closed(chain)


async def test_who_waits_is_woken(notify_harness: CallerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not look for itself again where there are notifications."""
    chain = await notify_harness.caller.start_chain(number, 1)
    client: Any = notify_harness.caller.client
    store, looked = await client._open_store(), asyncio.Event()
    look = store.closed_chains

    async def noted(ids: Any) -> Any:
        found = await look(ids)
        looked.set()
        return found

    monkeypatch.setattr(store, "closed_chains", noted)
    waiting = asyncio.create_task(notify_harness.caller.result(chain))
    await in_time(looked.wait())
    assert not waiting.done()
    await notify_harness.caller.complete_chain(chain, 10)
    assert await in_time(waiting) == 10
