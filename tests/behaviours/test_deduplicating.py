"""One chain for one key, as programs use it: repeated starts, recurring work, requests that are sent again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from queuert import Attempt, JobStatus, NewChain, after
from queuert.deduplication import Deduplicate
from queuert.errors import JobTypeMismatchError
from queuert.observability.events import AttemptStarted
from tests.behaviours.support import CallerHarness
from tests.support.job_types import echo, number, text


async def test_while_a_chain_is_open_and_after_it(caller_harness: CallerHarness) -> None:
    """Starts of one key get the same chain until it closes, and all who wait get the same result."""
    caller_harness.handles(number, echo)
    key = Deduplicate("report")
    one = await caller_harness.caller.start_chain(number, 1, deduplication=key)
    two = await caller_harness.caller.start_chain(number, 2, deduplication=key)
    assert (two.id, one.deduplicated, two.deduplicated) == (one.id, False, True)
    async with caller_harness.worker():
        assert [await caller_harness.caller.result(chain) for chain in (one, two)] == [1, 1]
    three = await caller_harness.caller.start_chain(number, 3, deduplication=key)
    assert (three.deduplicated, caller_harness.count()) == (False, 2)


async def test_any_scope_gives_the_result_again(caller_harness: CallerHarness) -> None:
    """The cached result: the handle of a closed chain says at once what came of it, and nothing is run."""
    caller_harness.handles(number, echo)
    requested = Deduplicate("square of 3", scope="any")
    async with caller_harness.worker():
        first = await caller_harness.caller.start_chain(number, 9, deduplication=requested)
        assert await caller_harness.caller.result(first) == 9
        again = await caller_harness.caller.start_chain(number, 0, deduplication=requested)
        assert (again.id, again.deduplicated) == (first.id, True)
        assert await caller_harness.caller.result(again) == 9
        fresh = await caller_harness.caller.start_chain(number, 4, deduplication=Deduplicate("square of 3"))
        assert await caller_harness.caller.result(fresh) == 4, "scope open does not match what has closed"
    assert len(caller_harness.log.of(AttemptStarted)) == 2


@pytest.mark.parametrize("scope", ["open", "any"])
async def test_a_window(caller_harness: CallerHarness, scope: str) -> None:
    requested = Deduplicate("hourly", scope=scope, window=timedelta(hours=1))
    first = await caller_harness.caller.start_chain(number, 1, deduplication=requested)
    caller_harness.rows("update queuert.job set created_at = created_at - interval '59 minutes'")
    assert (await caller_harness.caller.start_chain(number, 2, deduplication=requested)).id == first.id
    caller_harness.rows("update queuert.job set created_at = created_at - interval '2 minutes'")
    second = await caller_harness.caller.start_chain(number, 3, deduplication=requested)
    assert (second.deduplicated, caller_harness.count()) == (False, 2)
    third = await caller_harness.caller.start_chain(number, 4, deduplication=requested)
    assert third.id == second.id, "the newest stands in"


async def test_windows_of_a_batch(caller_harness: CallerHarness) -> None:
    """Each of a batch is judged by its own scope and window."""
    [old] = await caller_harness.caller.start_chains([NewChain(number, 1, deduplication=Deduplicate("k"))])
    caller_harness.rows("update queuert.job set created_at = created_at - interval '10 minutes'")
    closed = await caller_harness.caller.start_chain(number, 1, deduplication=Deduplicate("closed"))
    over = await caller_harness.caller.start_chain(number, 1, deduplication=Deduplicate("over"))
    await caller_harness.caller.complete_chain(closed, 1)
    await caller_harness.caller.complete_chain(over, 1)
    chains = await caller_harness.caller.start_chains(
        [
            NewChain(number, 2, deduplication=Deduplicate("k", window=3600)),
            NewChain(number, 3, deduplication=Deduplicate("closed", scope="any")),
            NewChain(number, 4, deduplication=Deduplicate("over")),
            NewChain(number, 5, deduplication=Deduplicate("another", window=1)),
        ]
    )
    assert [chain.deduplicated for chain in chains] == [True, True, False, False]
    assert [chains[0].id, chains[1].id] == [old.id, closed.id]


async def test_a_key_belongs_to_its_type(caller_harness: CallerHarness) -> None:
    key = Deduplicate("same")
    one, other, third = await caller_harness.caller.start_chains(
        [NewChain(number, 1, deduplication=key), NewChain(text, "a", deduplication=key), NewChain(number, 2)]
    )
    assert len({one.id, other.id, third.id}) == 3
    assert (await caller_harness.caller.start_chain(text, "b", deduplication=key)).id == other.id


async def test_against_what_was_there_before(caller_harness: CallerHarness) -> None:
    old = await caller_harness.caller.start_chain(number, 1, deduplication=Deduplicate("old"))
    chains = await caller_harness.caller.start_chains(
        [NewChain(number, value, deduplication=Deduplicate(key)) for value, key in enumerate(["new", "old", "new"])]
    )
    assert [chain.deduplicated for chain in chains] == [False, True, True]
    assert chains[1].id == old.id
    assert (await caller_harness.caller.get_job(old.id)).input == 1, "the new input is dropped"


async def test_a_chain_that_starts_its_successor(caller_harness: CallerHarness) -> None:
    """Recurring work: each run starts the next one under the same key, and excludes itself."""

    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.input < 3:
            key = Deduplicate("daily", excluding=[attempt.chain_id])
            for _ in range(2):
                await caller_harness.caller.start_chain(number, attempt.input + 1, deduplication=key)
        return attempt.input

    caller_harness.handles(number, handler)
    chain = await caller_harness.caller.start_chain(number, 0, deduplication=Deduplicate("daily"))
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == 0
        await caller_harness.log.wait_for(AttemptStarted, times=4)
        chains = [
            await caller_harness.caller.get_chain(row[0])
            for row in caller_harness.rows("select id from queuert.job order by id")
        ]
        assert [await caller_harness.caller.result(one) for one in chains] == [0, 1, 2, 3]
    assert caller_harness.count() == 4


async def test_excluded_chains_and_those_before_them(caller_harness: CallerHarness) -> None:
    oldest = await caller_harness.caller.start_chain(number, 1, deduplication=Deduplicate("k"))
    newest = await caller_harness.caller.start_chain(number, 2, deduplication=Deduplicate("k", excluding=[oldest]))
    assert newest.id != oldest.id
    passed = await caller_harness.caller.start_chain(number, 3, deduplication=Deduplicate("k", excluding=[newest]))
    assert passed.id == oldest.id
    neither = await caller_harness.caller.start_chain(
        number, 4, deduplication=Deduplicate("k", excluding=[newest, oldest.id])
    )
    assert not neither.deduplicated


async def test_a_start_that_rolled_back_stands_for_nothing(caller_harness: CallerHarness) -> None:
    key = Deduplicate("k")
    async with caller_harness.caller.rolled_back() as connection:
        lost = await caller_harness.caller.start_chain(number, 1, deduplication=key, connection=connection)
    chain = await caller_harness.caller.start_chain(number, 2, deduplication=key)
    assert not chain.deduplicated
    assert chain.id != lost.id


async def test_many_callers_with_one_key(caller_harness: CallerHarness) -> None:
    """Whoever starts first has the chain; the others get it, and all get its result."""
    caller_harness.handles(number, echo)
    starts = (
        caller_harness.caller.start_chain(number, value, deduplication=Deduplicate("k", scope="any"))
        for value in range(12)
    )
    chains = await asyncio.gather(*starts)
    assert sorted(chain.deduplicated for chain in chains) == [False] + [True] * 11
    async with caller_harness.worker():
        assert len({await caller_harness.caller.result(chain) for chain in chains}) == 1
    assert caller_harness.count() == 1


async def test_a_request_that_is_sent_again(caller_harness: CallerHarness) -> None:
    """Request and response: the same id again attaches to the running chain, and later gets the stored result."""
    caller_harness.handles(text, echo)
    one = await caller_harness.caller.start_chain(text, "question", id="request-1", attach=True)
    two = await caller_harness.caller.start_chain(text, "question, again", id="request-1", attach=True)
    assert (one.deduplicated, two.deduplicated) == (False, True)
    async with caller_harness.worker():
        assert [await caller_harness.caller.result(chain) for chain in (one, two)] == ["question", "question"]
    late = await caller_harness.caller.start_chain(text, "question?", id="request-1", attach=True)
    assert await caller_harness.caller.result(late) == "question"
    with pytest.raises(JobTypeMismatchError):
        await caller_harness.caller.start_chain(number, 1, id="request-1", attach=True)
    assert caller_harness.count() == 1


async def test_later_starts_do_not_move_the_first(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1, deduplication=Deduplicate("k"), run_at=after(hours=1))
    await caller_harness.caller.start_chain(number, 2, deduplication=Deduplicate("k"), priority=5)
    job = await caller_harness.caller.get_job(chain.id)
    assert (job.status, job.priority, job.input) == (JobStatus.SCHEDULED, 0, 1)
