"""Starting chains, one and many, as a program does it, up to what its workers make of them."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import ChainStatus, JobStatus, NewChain, after
from queuert.deduplication import Deduplicate
from queuert.errors import (
    BlockerMismatchError,
    ChainNotFoundError,
    InvalidIdentifierError,
    JobIdConflictError,
    PayloadError,
)
from queuert.observability.events import ChainStarted
from tests.behaviours.support import World, echo, number, pair, text, total


async def test_one_chain(world: World) -> None:
    chain = await world.caller.start_chain(number, 7)
    assert (chain.type, chain.status, chain.deduplicated) == ("number", ChainStatus.OPEN, False)
    job = await world.caller.get_job(chain.id)
    assert (job.chain_id, job.chain_index, job.status, job.input) == (chain.id, 0, JobStatus.READY, 7)
    assert (job.attempt, job.output, job.last_error, job.holder) == (0, None, None, None)


async def test_with_blockers(world: World) -> None:
    blockers = await world.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    chain = await world.caller.start_chain(total, "sum", blockers=[*blockers, blockers[0]])
    job = await world.caller.get_job(chain.id)
    assert (job.status, job.open_blockers) == (JobStatus.BLOCKED, 2), "one that is given twice counts once"
    assert [one.chain_id for one in await world.caller.get_blockers(chain.id)] == [one.id for one in blockers]


async def test_later(world: World) -> None:
    chain = await world.caller.start_chain(number, 7, run_at=after(hours=1))
    job = await world.caller.get_job(chain.id)
    assert job.status is JobStatus.SCHEDULED
    assert (job.scheduled_at - job.created_at).total_seconds() == pytest.approx(3600)


async def test_without_a_transaction_it_is_durable_at_once_and_with_one_at_its_commit(world: World) -> None:
    at_once = await world.caller.start_chain(number, 1)
    assert world.rows("select id from queuert.job") == [(at_once.id,)]
    async with world.caller.transaction() as connection:
        inside = await world.caller.start_chains([NewChain(number, 2), NewChain(text, "a")], connection=connection)
        assert world.count() == 1
    assert world.count() == 3
    reported = {event.chain_id: event.in_callers_transaction for event in world.log.of(ChainStarted)}
    assert reported == {at_once.id: False, inside[0].id: True, inside[1].id: True}


async def test_a_batch_in_a_transaction_that_rolls_back(world: World) -> None:
    async with world.caller.rolled_back() as connection:
        await world.caller.start_chains([NewChain(number, 2), NewChain(text, "a")], connection=connection)
    assert world.count() == 0


async def test_an_id_of_ones_own(world: World) -> None:
    chain = await world.caller.start_chain(number, 1, id="order-1")
    assert chain.id == "order-1"
    assert (await world.caller.get_job("order-1")).chain_id == "order-1"
    with pytest.raises(JobIdConflictError) as raised:
        await world.caller.start_chain(text, "another", id="order-1")
    assert raised.value.ids == ("order-1",)


async def test_ids_of_ones_own_for_some_of_a_batch(world: World) -> None:
    chains = await world.caller.start_chains(
        [NewChain(number, 1, id="a"), NewChain(number, 2), NewChain(text, "x", id="b")]
    )
    assert [chains[0].id, chains[2].id] == ["a", "b"]
    assert len({chain.id for chain in chains}) == 3
    with pytest.raises(InvalidIdentifierError):
        await world.caller.start_chains([NewChain(number, 1, id="c"), NewChain(number, 2, id="c")])
    with pytest.raises(JobIdConflictError):
        await world.caller.start_chains([NewChain(number, 1, id="d"), NewChain(number, 2, id="b")])
    assert world.count() == 3


async def test_a_batch_in_its_order(world: World) -> None:
    chains = await world.caller.start_chains([NewChain(number, value) for value in range(20)])
    jobs = [await world.caller.get_job(chain.id) for chain in chains]
    assert [job.input for job in jobs] == list(range(20))
    moments = [job.created_at for job in jobs]
    assert moments == sorted(set(moments)), "each has a time of its own, so that they are claimed in their order"


async def test_an_empty_batch(world: World) -> None:
    assert await world.caller.start_chains([]) == []
    async with world.caller.transaction() as connection:
        assert await world.caller.start_chains([], connection=connection) == []
    assert world.count() == 0


async def test_a_batch_with_deduplication(world: World) -> None:
    key = Deduplicate("k")
    chains = await world.caller.start_chains(
        [NewChain(number, 1, deduplication=key), NewChain(number, 2, deduplication=key), NewChain(number, 3)]
    )
    assert [chain.deduplicated for chain in chains] == [False, True, False]
    assert chains[0].id == chains[1].id
    assert world.count() == 2
    assert len(world.log.of(ChainStarted)) == 2


async def test_a_batch_of_everything(world: World) -> None:
    """Blocked, free and scheduled ones, of several types, in one call."""
    [blocker, gone] = await world.caller.start_chains([NewChain(number, 5), NewChain(number, 6)])
    await world.caller.complete_chain(gone, 6)
    chains = await world.caller.start_chains(
        [
            NewChain(total, "waits", blockers=[blocker]),
            NewChain(number, 1),
            NewChain(text, "later", run_at=after(minutes=1)),
            NewChain(total, "waits for nothing any more", blockers=[gone]),
            NewChain(total, "later, and blocked", blockers=[gone, blocker], run_at=after(minutes=1)),
            NewChain(total, "no blockers at all"),
        ]
    )
    statuses = [(await world.caller.get_job(chain.id)).status.value for chain in chains]
    assert statuses == ["blocked", "ready", "scheduled", "ready", "blocked", "ready"]


async def test_workers_release_and_run_a_blocked_batch(world: World) -> None:
    async def add(attempt: Any) -> int:
        return sum(attempt.outputs_of(number))

    world.handles(number, by=echo)
    world.handles(total, by=add)
    numbers = await world.caller.start_chains([NewChain(number, value) for value in range(6)])
    groups = [numbers[:3], numbers[3:], numbers]
    totals = await world.caller.start_chains([NewChain(total, "sum", blockers=group) for group in groups])
    async with world.worker(concurrency=4):
        assert [await world.caller.result(chain) for chain in totals] == [3, 12, 15]


async def test_workers_run_a_whole_batch(world: World) -> None:
    world.handles(number, text, by=echo)
    starts: list[NewChain[Any]] = [NewChain(number, value) for value in range(10)]
    chains = await world.caller.start_chains([*starts, NewChain(text, "a")])
    async with world.worker(concurrency=3):
        closed = await world.caller.wait(chains, timeout=20)
    assert [await world.caller.result(chain) for chain in closed] == [*range(10), "a"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: NewChain(number, "seven"), PayloadError),  # type: ignore[misc]
        (lambda: NewChain(total, "sum", blockers=["no such chain"]), ChainNotFoundError),
        (lambda: NewChain(pair, None), BlockerMismatchError),
        (lambda: NewChain(pair, None, blockers=["good", "good"]), BlockerMismatchError),
    ],
    ids=["input", "blocker that is not there", "blockers are missing", "one blocker twice"],
)
async def test_one_that_is_refused_takes_its_batch_with_it(world: World, wrong: Any, error: type[Exception]) -> None:
    await world.caller.start_chain(number, 1, id="good")
    with pytest.raises(error):
        await world.caller.start_chains([NewChain(number, 2), wrong(), NewChain(text, "a")])
    assert world.count() == 1


async def test_blockers_of_other_types_than_declared(world: World) -> None:
    [one, two, word] = await world.caller.start_chains([NewChain(number, 1), NewChain(number, 2), NewChain(text, "a")])
    for wrong in ([one, two], [word, one], [one], [one, word, two]):
        with pytest.raises(BlockerMismatchError):
            await world.caller.start_chain(pair, None, blockers=wrong)
    assert world.count() == 3
    assert (await world.caller.start_chain(pair, None, blockers=[one, word])).type == "pair"
