"""A worker from the outside: what it takes up and when, and what its handlers are told."""

from __future__ import annotations

from typing import Any

from queuert import Attempt, NewChain, Processors
from queuert.observability.events import AttemptCompleted, AttemptStarted, WorkerStarted
from tests.behaviours.support import CallerHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, echo, failing_once, last, middle, number, text
from tests.support.waiting import WAIT, Gate


async def test_jobs_from_before_it_was_there(notify_harness: CallerHarness) -> None:
    notify_harness.handles(number, echo)
    chains = await notify_harness.caller.start_chains([NewChain(number, value) for value in range(3)])
    async with notify_harness.worker():
        assert [await notify_harness.caller.result(chain) for chain in chains] == [0, 1, 2]


async def test_jobs_of_a_type_run_in_the_order_of_their_start_and_types_take_turns(
    caller_harness: CallerHarness,
) -> None:
    """One slot, several types and groups: of each type the job that was started first runs first."""
    numbers, words = caller_harness.new_processors(), caller_harness.new_processors()
    numbers.handles(number)(echo)
    words.handles(text)(echo)
    chains = []
    for value in range(5):
        chains.append(await caller_harness.caller.start_chain(number, value))
        chains.append(await caller_harness.caller.start_chain(text, str(value)))
    both: Any = [words, numbers]
    async with caller_harness.worker(both):
        await caller_harness.caller.wait(chains, timeout=WAIT)
    begun = [event.job_id for event in caller_harness.log.of(AttemptStarted)]
    ids = [chain.id for chain in chains]
    assert [id for id in begun if id in ids[::2]] == ids[::2]
    assert [id for id in begun if id in ids[1::2]] == ids[1::2]
    assert {id in ids[::2] for id in begun[:4]} == {True, False}


async def test_it_says_what_it_runs(caller_harness: CallerHarness) -> None:
    """Its types at the start; how many attempts run, while they do."""
    gate = Gate()

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        await gate.pass_through(attempt)
        return attempt.input

    caller_harness.handles(number, handler)
    caller_harness.handles(text, handler)
    chains = [await caller_harness.caller.start_chain(number, 1), await caller_harness.caller.start_chain(text, "a")]
    async with caller_harness.worker(concurrency=3) as worker:
        started = caller_harness.log.of(WorkerStarted)[0]
        assert (sorted(started.types), started.concurrency) == (["number", "text"], 3)
        await gate.next()
        await gate.next()
        assert worker.running == 2
        gate.open()
        await caller_harness.caller.wait(chains, timeout=WAIT)
    assert worker.running == 0
    assert {event.type for event in caller_harness.log.of(AttemptCompleted)} == {"number", "text"}


async def test_an_attempt_is_reported_what_it_is(caller_harness: CallerHarness) -> None:
    """Its job and its chain, its number, and from the second on how the one before ended."""
    seen: list[tuple[int, str, str, str]] = []

    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, attempt.input)

    def note(attempt: Attempt[int, str]) -> str:
        seen.append((attempt.number, attempt.type, attempt.chain_type, attempt.chain_id))
        return str(attempt.input)

    caller_harness.handles(middle, goes_on)
    caller_harness.handles(last, failing_once(note))
    chain = await caller_harness.caller.start_chain(middle, 1)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == "1"
    assert seen == [(2, "last", "middle", chain.id)]
    [_, job] = await caller_harness.caller.list_chain_jobs(chain)
    assert (job.attempt, job.last_error) == (2, None), "the error goes with the attempt that completes"


async def test_what_a_handler_starts_is_a_chain_of_its_own(caller_harness: CallerHarness) -> None:
    """Nothing of the attempt's chain is inherited; the new chain lives on when the job fails."""
    started: list[Any] = []

    async def handler(attempt: Attempt[int, int]) -> Any:
        started.append(await caller_harness.caller.start_chain(text, "independent"))
        return attempt.fail("for all that")

    caller_harness.handles(number, handler)
    caller_harness.handles(text, echo)
    chain = await caller_harness.caller.start_chain(number, 1, priority=7)
    async with caller_harness.worker():
        await caller_harness.caller.closed(chain)
        assert await caller_harness.caller.result(started[0]) == "independent"
    job = await caller_harness.caller.get_job(started[0].id)
    assert (job.chain_id, job.chain_index, job.priority) == (job.id, 0, 0)
    assert await caller_harness.caller.get_blockers(job.id) == []


async def test_a_start_with_the_completion(caller_harness: CallerHarness) -> None:
    """On the connection of ``complete()`` a start stands or falls with the job's finish."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        async with attempt.complete() as tx:
            client: Any = caller_harness.client
            await client.start_chain(text, f"attempt {attempt.number}", connection=tx.connection)
            if attempt.number == 1:
                raise RuntimeError("rolled back")
            return tx.finish(attempt.input)

    caller_harness.handles(number, handler)
    chain = await caller_harness.caller.start_chain(number, 1)
    async with caller_harness.worker(client=caller_harness.client):
        assert await caller_harness.caller.result(chain) == 1
    assert [job.input for job in await caller_harness.caller.list_jobs(job_types=[text])] == ["attempt 2"]


async def test_groups_of_processors_make_one_worker(caller_harness: CallerHarness) -> None:
    """Each with its own middlewares; none runs around the jobs of the other."""
    seen: list[str] = []

    async def note(attempt: Attempt[Any, Any], run: Any) -> Any:
        seen.append(attempt.type)
        return await run()

    noted = Processors(JOB_TYPES, middlewares=[note], retry=AT_ONCE)
    noted.handles(number)(echo)
    plain = caller_harness.new_processors()
    plain.handles(text)(echo)
    chains = [await caller_harness.caller.start_chain(number, 1), await caller_harness.caller.start_chain(text, "a")]
    both: Any = [noted, plain]
    async with caller_harness.worker(both):
        assert [await caller_harness.caller.result(chain) for chain in chains] == [1, "a"]
    assert seen == ["number"]
