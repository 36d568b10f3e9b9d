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
from tests.behaviours.support import CallerHarness
from tests.support.job_types import echo, number, pair, text, total
from tests.support.waiting import WAIT


async def test_one_chain(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 7)
    assert (chain.type, chain.status, chain.deduplicated) == ("number", ChainStatus.OPEN, False)
    job = await caller_harness.caller.get_job(chain.id)
    assert (job.chain_id, job.chain_index, job.status, job.input) == (chain.id, 0, JobStatus.READY, 7)
    assert (job.attempt, job.output, job.last_error, job.holder) == (0, None, None, None)


async def test_with_blockers(caller_harness: CallerHarness) -> None:
    blockers = await caller_harness.caller.start_chains([NewChain(number, 1), NewChain(number, 2)])
    chain = await caller_harness.caller.start_chain(total, "sum", blockers=[*blockers, blockers[0]])
    job = await caller_harness.caller.get_job(chain.id)
    assert (job.status, job.open_blockers) == (JobStatus.BLOCKED, 2), "one that is given twice counts once"
    assert [one.chain_id for one in await caller_harness.caller.get_blockers(chain.id)] == [one.id for one in blockers]


async def test_later(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 7, run_at=after(hours=1))
    job = await caller_harness.caller.get_job(chain.id)
    assert job.status is JobStatus.SCHEDULED
    assert (job.scheduled_at - job.created_at).total_seconds() == pytest.approx(3600)


async def test_without_a_transaction_it_is_durable_at_once_and_with_one_at_its_commit(
    caller_harness: CallerHarness,
) -> None:
    at_once = await caller_harness.caller.start_chain(number, 1)
    assert caller_harness.rows("select id from queuert.job") == [(at_once.id,)]
    async with caller_harness.caller.transaction() as connection:
        inside = await caller_harness.caller.start_chains(
            [NewChain(number, 2), NewChain(text, "a")], connection=connection
        )
        assert caller_harness.count() == 1
    assert caller_harness.count() == 3
    reported = {event.chain_id: event.in_callers_transaction for event in caller_harness.log.of(ChainStarted)}
    assert reported == {at_once.id: False, inside[0].id: True, inside[1].id: True}


async def test_a_batch_in_a_transaction_that_rolls_back(caller_harness: CallerHarness) -> None:
    async with caller_harness.caller.rolled_back() as connection:
        await caller_harness.caller.start_chains([NewChain(number, 2), NewChain(text, "a")], connection=connection)
    assert caller_harness.count() == 0


async def test_an_id_of_ones_own(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1, id="order-1")
    assert chain.id == "order-1"
    assert (await caller_harness.caller.get_job("order-1")).chain_id == "order-1"
    with pytest.raises(JobIdConflictError) as raised:
        await caller_harness.caller.start_chain(text, "another", id="order-1")
    assert raised.value.ids == ("order-1",)


async def test_ids_of_ones_own_for_some_of_a_batch(caller_harness: CallerHarness) -> None:
    chains = await caller_harness.caller.start_chains(
        [NewChain(number, 1, id="a"), NewChain(number, 2), NewChain(text, "x", id="b")]
    )
    assert [chains[0].id, chains[2].id] == ["a", "b"]
    assert len({chain.id for chain in chains}) == 3
    with pytest.raises(InvalidIdentifierError):
        await caller_harness.caller.start_chains([NewChain(number, 1, id="c"), NewChain(number, 2, id="c")])
    with pytest.raises(JobIdConflictError):
        await caller_harness.caller.start_chains([NewChain(number, 1, id="d"), NewChain(number, 2, id="b")])
    assert caller_harness.count() == 3


async def test_a_batch_in_its_order(caller_harness: CallerHarness) -> None:
    chains = await caller_harness.caller.start_chains([NewChain(number, value) for value in range(20)])
    jobs = [await caller_harness.caller.get_job(chain.id) for chain in chains]
    assert [job.input for job in jobs] == list(range(20))
    moments = [job.created_at for job in jobs]
    assert moments == sorted(set(moments)), "each has a time of its own, so that they are claimed in their order"


async def test_an_empty_batch(caller_harness: CallerHarness) -> None:
    assert await caller_harness.caller.start_chains([]) == []
    async with caller_harness.caller.transaction() as connection:
        assert await caller_harness.caller.start_chains([], connection=connection) == []
    assert caller_harness.count() == 0


async def test_a_batch_with_deduplication(caller_harness: CallerHarness) -> None:
    key = Deduplicate("k")
    chains = await caller_harness.caller.start_chains(
        [NewChain(number, 1, deduplication=key), NewChain(number, 2, deduplication=key), NewChain(number, 3)]
    )
    assert [chain.deduplicated for chain in chains] == [False, True, False]
    assert chains[0].id == chains[1].id
    assert caller_harness.count() == 2
    assert len(caller_harness.log.of(ChainStarted)) == 2


async def test_a_batch_of_everything(caller_harness: CallerHarness) -> None:
    """Blocked, free and scheduled ones, of several types, in one call."""
    [blocker, gone] = await caller_harness.caller.start_chains([NewChain(number, 5), NewChain(number, 6)])
    await caller_harness.caller.complete_chain(gone, 6)
    chains = await caller_harness.caller.start_chains(
        [
            NewChain(total, "waits", blockers=[blocker]),
            NewChain(number, 1),
            NewChain(text, "later", run_at=after(minutes=1)),
            NewChain(total, "waits for nothing any more", blockers=[gone]),
            NewChain(total, "later, and blocked", blockers=[gone, blocker], run_at=after(minutes=1)),
            NewChain(total, "no blockers at all"),
        ]
    )
    statuses = [(await caller_harness.caller.get_job(chain.id)).status.value for chain in chains]
    assert statuses == ["blocked", "ready", "scheduled", "ready", "blocked", "ready"]


async def test_workers_release_and_run_a_blocked_batch(caller_harness: CallerHarness) -> None:
    async def add(attempt: Any) -> int:
        return sum(attempt.outputs_of(number))

    caller_harness.handles(number, echo)
    caller_harness.handles(total, add)
    numbers = await caller_harness.caller.start_chains([NewChain(number, value) for value in range(6)])
    groups = [numbers[:3], numbers[3:], numbers]
    totals = await caller_harness.caller.start_chains([NewChain(total, "sum", blockers=group) for group in groups])
    async with caller_harness.worker(concurrency=4):
        assert [await caller_harness.caller.result(chain) for chain in totals] == [3, 12, 15]


async def test_workers_run_a_whole_batch(caller_harness: CallerHarness) -> None:
    caller_harness.handles(number, echo)
    caller_harness.handles(text, echo)
    starts: list[NewChain[Any]] = [NewChain(number, value) for value in range(10)]
    chains = await caller_harness.caller.start_chains([*starts, NewChain(text, "a")])
    async with caller_harness.worker(concurrency=3):
        closed = await caller_harness.caller.wait(chains, timeout=WAIT)
    assert [await caller_harness.caller.result(chain) for chain in closed] == [*range(10), "a"]


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
async def test_one_that_is_refused_takes_its_batch_with_it(
    caller_harness: CallerHarness, wrong: Any, error: type[Exception]
) -> None:
    await caller_harness.caller.start_chain(number, 1, id="good")
    with pytest.raises(error):
        await caller_harness.caller.start_chains([NewChain(number, 2), wrong(), NewChain(text, "a")])
    assert caller_harness.count() == 1


async def test_blockers_of_other_types_than_declared(caller_harness: CallerHarness) -> None:
    [one, two, word] = await caller_harness.caller.start_chains(
        [NewChain(number, 1), NewChain(number, 2), NewChain(text, "a")]
    )
    for wrong in ([one, two], [word, one], [one], [one, word, two]):
        with pytest.raises(BlockerMismatchError):
            await caller_harness.caller.start_chain(pair, None, blockers=wrong)
    assert caller_harness.count() == 3
    assert (await caller_harness.caller.start_chain(pair, None, blockers=[one, word])).type == "pair"
