"""Deleting chains: what goes, what stays, and what a worker makes of a job that is gone."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import AbortReason, Attempt, ChainStatus, NewChain
from queuert.deduplication import Deduplicate
from queuert.errors import BlockerReferenceError, ChainNotFoundError, JobNotFoundError, LeaseLostError
from queuert.observability.events import AttemptAborted, AttemptStarted, FinishRejected, JobReaped
from tests.behaviours.support import World, echo, last, middle, number, total
from tests.worker.support import Gate, in_time


async def waiting_for(world: World, *ids: str, id: str) -> str:
    """A chain of this id that waits for those, which are started if they are not there."""
    for one in ids:
        await world.caller.start_chain(total, one, id=one, attach=True)
    await world.caller.start_chain(last, 1, id=id, blockers=ids)
    return id


async def left(world: World) -> set[str]:
    return {row[0] for row in world.rows("select id from queuert.job")}


async def test_a_chain_goes_with_all_its_jobs(world: World) -> None:
    """First jobs and continuations, closed and open; other chains stay as they are."""

    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, attempt.input)

    world.handles(middle, by=goes_on)
    world.handles(last, by=lambda attempt: str(attempt.input))
    gone = await world.caller.start_chain(middle, 1, id="gone")
    async with world.worker():
        assert await world.caller.result(gone) == "1"
    stays = await world.caller.start_chain(number, 1, id="stays")
    assert (await world.caller.get_chain("gone")).status is ChainStatus.COMPLETED
    assert await world.caller.delete_chains([gone]) == ["gone"]
    assert await left(world) == {stays.id}
    with pytest.raises(ChainNotFoundError):
        await world.caller.get_chain("gone")
    with pytest.raises(JobNotFoundError):
        await world.caller.get_job("gone")
    assert list(await world.caller.list_chain_jobs("gone")) == []


async def test_one_chain_says_whether_it_was_there(world: World) -> None:
    chain = await world.caller.start_chain(number, 1)
    assert await world.caller.delete_chain(chain) is True
    assert await world.caller.delete_chain(chain) is False
    assert await world.caller.delete_chains([chain, "nowhere"]) == []


async def test_in_a_transaction(world: World) -> None:
    chain = await world.caller.start_chain(number, 1)
    async with world.caller.rolled_back() as connection:
        await world.caller.delete_chain(chain, connection=connection)
    assert await left(world) == {chain.id}
    async with world.caller.transaction() as connection:
        await world.caller.delete_chain(chain, connection=connection)
        assert await left(world) == {chain.id}
    assert await left(world) == set()


async def test_a_running_handler_is_reported(world: World) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    world.handles(number, by=handler)
    chain = await world.caller.start_chain(number, 1)
    async with world.worker():
        attempt = await gate.next()
        assert await world.caller.delete_chain(chain) is True
        await world.log.wait_for(AttemptAborted, job_id=chain.id, reason=AbortReason.NOT_FOUND)
        assert attempt.abort.reason is AbortReason.NOT_FOUND
        gate.open()
        assert await world.caller.result(await world.caller.start_chain(number, 2)) == 2, "the worker goes on"
    assert world.log.of(JobReaped) == []
    assert world.count() == 1


async def test_deleted_between_the_work_and_the_commit(world: World) -> None:
    """The commit is refused, nothing of it is written, and the worker takes the next job."""
    refused: list[str] = []

    def handler(attempt: Attempt[int, int]) -> Any:
        world.rows("delete from queuert.job where id = %s and id = 'gone'", attempt.job_id)
        try:
            with attempt.complete() as tx:
                return tx.finish(attempt.input)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    world.handles(number, by=handler)
    await world.caller.start_chain(number, 1, id="gone", priority=1)
    chain = await world.caller.start_chain(number, 2)
    async with world.worker():
        assert await world.caller.result(chain) == 2
        await world.log.wait_for(FinishRejected, job_id="gone")
    assert refused == [AbortReason.NOT_FOUND]
    assert len(world.log.of(AttemptStarted, job_id="gone")) == 1


async def test_deleted_before_a_returned_output_is_written(world: World) -> None:
    def handler(attempt: Attempt[int, int]) -> int:
        world.rows("delete from queuert.job where id = %s and id = 'gone'", attempt.job_id)
        return attempt.input

    world.handles(number, by=handler)
    await world.caller.start_chain(number, 1, id="gone", priority=1)
    chain = await world.caller.start_chain(number, 2)
    async with world.worker():
        assert await world.caller.result(chain) == 2
        await in_time(world.log.wait_for(FinishRejected, job_id="gone", reason=AbortReason.NOT_FOUND))
    assert await left(world) == {chain.id}


# --- blockers ---------------------------------------------------------------------------------------------------------


async def test_a_blocker_stays_while_something_waits_for_it(world: World) -> None:
    """Open or closed, with or without a cascade, alone or with others; the error names who waits."""
    await waiting_for(world, "blocker", id="waits")
    other = await world.caller.start_chain(number, 1)
    for cascade in (False, True):
        with pytest.raises(BlockerReferenceError) as raised:
            await world.caller.delete_chains([other, "blocker"], cascade=cascade)
        assert raised.value.references == (("blocker", "waits"),)
        with pytest.raises(BlockerReferenceError):
            await world.caller.delete_chain("blocker", cascade=cascade)
    await world.caller.complete_chain("blocker", 1)
    with pytest.raises(BlockerReferenceError):
        await world.caller.delete_chain("blocker")
    assert await left(world) == {"blocker", "waits", other.id}
    assert await world.caller.delete_chains(["blocker", "waits"]) == ["blocker", "waits"]


async def test_what_waits_goes_without_what_it_waited_for(world: World) -> None:
    await waiting_for(world, "blocker", id="waits")
    assert await world.caller.delete_chain("waits") is True
    assert await left(world) == {"blocker"}
    world.handles(total, by=lambda attempt: 1)
    async with world.worker():
        assert await world.caller.result(await world.caller.get_chain("blocker")) == 1


async def test_a_cascade_takes_the_blockers_and_theirs(world: World) -> None:
    """Transitively, each once: a and b wait for shared; top waits for both."""
    await world.caller.start_chain(number, 1, id="shared")
    await world.caller.start_chains([NewChain(total, "x", id=id, blockers=["shared"]) for id in ("a", "b")])
    await waiting_for(world, "a", "b", id="top")
    stays = await world.caller.start_chain(number, 2, id="stays")
    gone = await world.caller.delete_chains(["top"], cascade=True)
    assert gone[0] == "top"
    assert sorted(gone) == ["a", "b", "shared", "top"]
    assert await left(world) == {stays.id}


async def test_a_cascade_without_blockers(world: World) -> None:
    chains = await world.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    assert await world.caller.delete_chain(chains[0], cascade=True) is True
    assert await left(world) == {chains[1].id}


async def test_a_cascade_that_would_take_from_others(world: World) -> None:
    await waiting_for(world, "shared", id="mine")
    await waiting_for(world, "shared", id="theirs")
    with pytest.raises(BlockerReferenceError) as raised:
        await world.caller.delete_chains(["mine"], cascade=True)
    assert raised.value.references == (("shared", "theirs"),)
    assert await left(world) == {"mine", "theirs", "shared"}
    assert sorted(await world.caller.delete_chains(["mine", "theirs"], cascade=True)) == ["mine", "shared", "theirs"]


async def test_ids_and_keys_are_free_again(world: World) -> None:
    world.handles(number, by=echo)
    key = Deduplicate("k", scope="any")
    await world.caller.start_chain(number, 1, id="again", deduplication=key)
    await world.caller.delete_chain("again")
    chain = await world.caller.start_chain(number, 2, id="again", deduplication=key)
    assert not chain.deduplicated
    async with world.worker():
        assert await world.caller.result(chain) == 2
