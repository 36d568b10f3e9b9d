"""Deleting chains: what goes, what stays, and what a worker makes of a job that is gone."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, ChainStatus, NewChain
from queuert.deduplication import Deduplicate
from queuert.errors import BlockerReferenceError, ChainNotFoundError, JobNotFoundError, LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.events import AttemptAborted, AttemptStarted, FinishRejected, JobReaped
from tests.behaviours.support import CallerHarness
from tests.support.job_types import echo, last, middle, number, total
from tests.support.waiting import Gate, in_time


async def waiting_for(caller_harness: CallerHarness, *ids: str, id: str) -> str:
    """A chain of this id that waits for those, which are started if they are not there."""
    for one in ids:
        await caller_harness.caller.start_chain(total, one, id=one, attach=True)
    await caller_harness.caller.start_chain(last, 1, id=id, blockers=ids)
    return id


async def left(caller_harness: CallerHarness) -> set[str]:
    return {row[0] for row in caller_harness.rows("select id from queuert.job")}


async def test_a_chain_goes_with_all_its_jobs(caller_harness: CallerHarness) -> None:
    """First jobs and continuations, closed and open; other chains stay as they are."""

    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, attempt.input)

    caller_harness.handles(middle, goes_on)
    caller_harness.handles(last, lambda attempt: str(attempt.input))
    gone = await caller_harness.caller.start_chain(middle, 1, id="gone")
    async with caller_harness.worker():
        assert await caller_harness.caller.result(gone) == "1"
    stays = await caller_harness.caller.start_chain(number, 1, id="stays")
    assert (await caller_harness.caller.get_chain("gone")).status is ChainStatus.COMPLETED
    assert await caller_harness.caller.delete_chains([gone]) == ["gone"]
    assert await left(caller_harness) == {stays.id}
    with pytest.raises(ChainNotFoundError):
        await caller_harness.caller.get_chain("gone")
    with pytest.raises(JobNotFoundError):
        await caller_harness.caller.get_job("gone")
    assert list(await caller_harness.caller.list_chain_jobs("gone")) == []


async def test_one_chain_says_whether_it_was_there(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1)
    assert await caller_harness.caller.delete_chain(chain) is True
    assert await caller_harness.caller.delete_chain(chain) is False
    assert await caller_harness.caller.delete_chains([chain, "nowhere"]) == []


async def test_in_a_transaction(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1)
    async with caller_harness.caller.rolled_back() as connection:
        await caller_harness.caller.delete_chain(chain, connection=connection)
    assert await left(caller_harness) == {chain.id}
    async with caller_harness.caller.transaction() as connection:
        await caller_harness.caller.delete_chain(chain, connection=connection)
        assert await left(caller_harness) == {chain.id}
    assert await left(caller_harness) == set()


async def test_a_running_handler_is_reported(caller_harness: CallerHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    caller_harness.handles(number, handler)
    chain = await caller_harness.caller.start_chain(number, 1)
    async with caller_harness.worker():
        attempt = await gate.next()
        assert await caller_harness.caller.delete_chain(chain) is True
        await caller_harness.log.wait_for(AttemptAborted, job_id=chain.id, reason=AbortReason.NOT_FOUND)
        assert attempt.abort.reason is AbortReason.NOT_FOUND
        gate.open()
        assert await caller_harness.caller.result(await caller_harness.caller.start_chain(number, 2)) == 2, (
            "the worker goes on"
        )
    assert caller_harness.log.of(JobReaped) == []
    assert caller_harness.count() == 1


async def test_deleted_between_the_work_and_the_commit(caller_harness: CallerHarness) -> None:
    """The commit is refused, nothing of it is written, and the worker takes the next job."""
    refused: list[str] = []

    def handler(attempt: Attempt[int, int]) -> Any:
        caller_harness.rows("delete from queuert.job where id = %s and id = 'gone'", attempt.job_id)
        try:
            with attempt.complete() as tx:
                return tx.finish(attempt.input)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    caller_harness.handles(number, handler)
    await caller_harness.caller.start_chain(number, 1, id="gone", priority=1)
    chain = await caller_harness.caller.start_chain(number, 2)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == 2
        await caller_harness.log.wait_for(FinishRejected, job_id="gone")
    assert refused == [AbortReason.NOT_FOUND]
    assert len(caller_harness.log.of(AttemptStarted, job_id="gone")) == 1


async def test_deleted_before_a_returned_output_is_written(caller_harness: CallerHarness) -> None:
    def handler(attempt: Attempt[int, int]) -> int:
        caller_harness.rows("delete from queuert.job where id = %s and id = 'gone'", attempt.job_id)
        return attempt.input

    caller_harness.handles(number, handler)
    await caller_harness.caller.start_chain(number, 1, id="gone", priority=1)
    chain = await caller_harness.caller.start_chain(number, 2)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == 2
        await in_time(caller_harness.log.wait_for(FinishRejected, job_id="gone", reason=AbortReason.NOT_FOUND))
    assert await left(caller_harness) == {chain.id}


# --- blockers ---------------------------------------------------------------------------------------------------------


async def test_a_blocker_stays_while_something_waits_for_it(caller_harness: CallerHarness) -> None:
    """Open or closed, with or without a cascade, alone or with others; the error names who waits."""
    await waiting_for(caller_harness, "blocker", id="waits")
    other = await caller_harness.caller.start_chain(number, 1)
    for cascade in (False, True):
        with pytest.raises(BlockerReferenceError) as raised:
            await caller_harness.caller.delete_chains([other, "blocker"], cascade=cascade)
        assert raised.value.references == (("blocker", "waits"),)
        with pytest.raises(BlockerReferenceError):
            await caller_harness.caller.delete_chain("blocker", cascade=cascade)
    await caller_harness.caller.complete_chain("blocker", 1)
    with pytest.raises(BlockerReferenceError):
        await caller_harness.caller.delete_chain("blocker")
    assert await left(caller_harness) == {"blocker", "waits", other.id}
    assert await caller_harness.caller.delete_chains(["blocker", "waits"]) == ["blocker", "waits"]


async def test_what_waits_goes_without_what_it_waited_for(caller_harness: CallerHarness) -> None:
    await waiting_for(caller_harness, "blocker", id="waits")
    assert await caller_harness.caller.delete_chain("waits") is True
    assert await left(caller_harness) == {"blocker"}
    caller_harness.handles(total, lambda attempt: 1)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(await caller_harness.caller.get_chain("blocker")) == 1


async def test_a_cascade_takes_the_blockers_and_theirs(caller_harness: CallerHarness) -> None:
    """Transitively, each once: a and b wait for shared; top waits for both."""
    await caller_harness.caller.start_chain(number, 1, id="shared")
    await caller_harness.caller.start_chains([NewChain(total, "x", id=id, blockers=["shared"]) for id in ("a", "b")])
    await waiting_for(caller_harness, "a", "b", id="top")
    stays = await caller_harness.caller.start_chain(number, 2, id="stays")
    gone = await caller_harness.caller.delete_chains(["top"], cascade=True)
    assert gone[0] == "top"
    assert sorted(gone) == ["a", "b", "shared", "top"]
    assert await left(caller_harness) == {stays.id}


async def test_a_cascade_without_blockers(caller_harness: CallerHarness) -> None:
    chains = await caller_harness.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    assert await caller_harness.caller.delete_chain(chains[0], cascade=True) is True
    assert await left(caller_harness) == {chains[1].id}


async def test_a_cascade_that_would_take_from_others(caller_harness: CallerHarness) -> None:
    await waiting_for(caller_harness, "shared", id="mine")
    await waiting_for(caller_harness, "shared", id="theirs")
    with pytest.raises(BlockerReferenceError) as raised:
        await caller_harness.caller.delete_chains(["mine"], cascade=True)
    assert raised.value.references == (("shared", "theirs"),)
    assert await left(caller_harness) == {"mine", "theirs", "shared"}
    assert sorted(await caller_harness.caller.delete_chains(["mine", "theirs"], cascade=True)) == [
        "mine",
        "shared",
        "theirs",
    ]


async def test_ids_and_keys_are_free_again(caller_harness: CallerHarness) -> None:
    caller_harness.handles(number, echo)
    key = Deduplicate("k", scope="any")
    await caller_harness.caller.start_chain(number, 1, id="again", deduplication=key)
    await caller_harness.caller.delete_chain("again")
    chain = await caller_harness.caller.start_chain(number, 2, id="again", deduplication=key)
    assert not chain.deduplicated
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == 2
