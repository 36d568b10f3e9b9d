"""Jobs that run later: first ones, continuations, and other attempts; and those that are triggered before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, after, at
from queuert.errors import JobNotFoundError, JobNotTriggerableError
from queuert.observability.events import AttemptCompleted, AttemptContinued, AttemptRetried, AttemptStarted
from queuert.run_at import RunAt
from tests.behaviours.support import CallerHarness
from tests.support.job_types import LATER, echo, last, middle, number, total
from tests.support.waiting import Gate

SOON = 0.15
"""Seconds: long enough to be seen waiting, short enough to be waited for."""


def soon(kind: str) -> RunAt:
    if kind == "after":
        return after(seconds=SOON)
    return at(datetime.now(UTC) + timedelta(seconds=SOON))


either = pytest.mark.parametrize("kind", ["after", "at"])
past = at(datetime(2001, 1, 1, tzinfo=UTC))


async def ran_when_due(caller_harness: CallerHarness, job_id: str) -> None:
    """It was not claimed before its time, by the clock of the database."""
    [(on_time,)] = caller_harness.rows("select started_at >= scheduled_at from queuert.job where id = %s", job_id)
    assert on_time


@either
async def test_a_chain_that_starts_later(caller_harness: CallerHarness, kind: str) -> None:
    caller_harness.handles(number, echo)
    async with caller_harness.worker():
        # In one commit: the worker sees both or none.
        chain, sooner = await caller_harness.caller.start_chains(
            [NewChain(number, 7, run_at=soon(kind)), NewChain(number, 8)]
        )
        assert await caller_harness.caller.result(sooner) == 8
        assert await caller_harness.caller.result(chain) == 7
    await ran_when_due(caller_harness, chain.id)
    # The other one goes first, unless it was written so slowly that this one was due before.
    due = [row[0] for row in caller_harness.rows("select id from queuert.job order by scheduled_at")]
    assert [event.job_id for event in caller_harness.log.of(AttemptStarted)] == due


@either
async def test_a_continuation_that_runs_later(caller_harness: CallerHarness, kind: str) -> None:
    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, 2, run_at=soon(kind))

    caller_harness.handles(middle, goes_on)
    caller_harness.handles(last, lambda attempt: str(attempt.input))
    async with caller_harness.worker():
        chain = await caller_harness.caller.start_chain(middle, 1)
        step = (await caller_harness.log.wait_for(AttemptContinued)).next_job_id
        assert await caller_harness.caller.result(chain) == "2"
    await ran_when_due(caller_harness, step)


async def test_an_attempt_that_is_put_off(caller_harness: CallerHarness) -> None:
    """The handler names the pause: it is kept to the letter, whatever the retry policy says."""

    async def later(attempt: Attempt[int, int]) -> Any:
        return attempt.input if attempt.number == 2 else attempt.retry(after=SOON, reason="not yet")

    caller_harness.handles(number, later, retry=LATER)
    async with caller_harness.worker():
        chain = await caller_harness.caller.start_chain(number, 7)
        assert await caller_harness.caller.result(chain) == 7
    await ran_when_due(caller_harness, chain.id)
    assert caller_harness.log.of(AttemptRetried)[0].retry_in == SOON


async def test_times_that_have_passed_mean_now(caller_harness: CallerHarness) -> None:
    """First jobs and continuations; none jumps the queue by an old time."""
    early = await caller_harness.caller.start_chain(number, 1)
    late = await caller_harness.caller.start_chain(number, 2, run_at=past)
    jobs = [await caller_harness.caller.get_job(chain.id) for chain in (early, late)]
    assert [job.status for job in jobs] == [JobStatus.READY, JobStatus.READY]
    assert jobs[0].scheduled_at <= jobs[1].scheduled_at

    async def goes_on(attempt: Attempt[int, str]) -> Any:
        return attempt.continue_with(last, 2, run_at=past)

    async def puts_off(attempt: Attempt[int, str]) -> Any:
        return str(attempt.input) if attempt.number == 2 else attempt.retry(after=0)

    caller_harness.handles(number, echo)
    caller_harness.handles(middle, goes_on)
    caller_harness.handles(last, puts_off)
    chain = await caller_harness.caller.start_chain(middle, 1)
    async with caller_harness.worker():
        assert await caller_harness.caller.result(chain) == "2"
    assert caller_harness.rows("select count(*) from queuert.job where scheduled_at < created_at") == [(0,)]


# --- trigger ----------------------------------------------------------------------------------------------------------


async def test_triggered_jobs_are_run_at_once(caller_harness: CallerHarness) -> None:
    """In one call, in any order; the worker is woken by it."""
    caller_harness.handles(number, echo)
    chains = await caller_harness.caller.start_chains(
        [NewChain(number, one, run_at=after(hours=1)) for one in range(3)]
    )
    async with caller_harness.worker():
        await caller_harness.caller.trigger_jobs([chain.id for chain in reversed(chains)])
        assert [await caller_harness.caller.result(chain) for chain in chains] == [0, 1, 2]
    assert {event.attempt for event in caller_harness.log.of(AttemptStarted)} == {1}, "a trigger costs no attempt"


async def test_the_pause_before_a_retry_is_cut_short(caller_harness: CallerHarness) -> None:
    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.number == 1:
            raise RuntimeError("not today")
        return attempt.input

    caller_harness.handles(number, handler, retry=LATER)
    async with caller_harness.worker():
        chain = await caller_harness.caller.start_chain(number, 7)
        await caller_harness.log.wait_for(AttemptRetried)
        waiting = await caller_harness.caller.get_job(chain.id)
        assert (waiting.status, waiting.attempt) == (JobStatus.SCHEDULED, 1)
        assert "not today" in waiting.last_error.message
        await caller_harness.caller.trigger_job(chain.id)
        assert await caller_harness.caller.result(chain) == 7
    assert [event.attempt for event in caller_harness.log.of(AttemptStarted)] == [1, 2]


async def test_jobs_that_are_not_scheduled_are_not_triggered_nor_the_others_with_them(
    caller_harness: CallerHarness,
) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    caller_harness.handles(number, handler)
    done, running = await caller_harness.caller.start_chains(
        [NewChain(number, 1, id="done"), NewChain(number, 2, id="running")]
    )
    await caller_harness.caller.complete_chain(done, 1)
    await caller_harness.caller.start_chain(total, "x", id="blocked", blockers=[running])
    await caller_harness.caller.start_chain(number, 3, id="later", run_at=after(hours=1))
    async with caller_harness.worker():
        await gate.next()
        for id in ("done", "blocked", "running"):
            with pytest.raises(JobNotTriggerableError) as raised:
                await caller_harness.caller.trigger_jobs(["later", id])
            assert (raised.value.job_id, raised.value.status) == (
                id,
                {"done": "completed", "blocked": "blocked", "running": "running"}[id],
            )
        with pytest.raises(JobNotFoundError):
            await caller_harness.caller.trigger_jobs(["later", "nowhere"])
        assert (await caller_harness.caller.get_job("later")).status is JobStatus.SCHEDULED
        assert await caller_harness.caller.trigger_jobs([]) is None
        gate.open()
        assert (await caller_harness.caller.closed(running)).status is ChainStatus.COMPLETED
    assert not caller_harness.log.of(AttemptCompleted, job_id="later")


async def test_a_trigger_in_a_transaction(caller_harness: CallerHarness) -> None:
    chain = await caller_harness.caller.start_chain(number, 1, run_at=after(hours=1))
    async with caller_harness.caller.transaction() as connection:
        await caller_harness.caller.trigger_job(chain.id, connection=connection)
        assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.SCHEDULED
    assert (await caller_harness.caller.get_job(chain.id)).status is JobStatus.READY
