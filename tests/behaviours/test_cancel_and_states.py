"""Cancelling, and what a job and its chain say of themselves at each moment."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, JobType, JobTypes, NewChain, RetryPolicy, after
from queuert.errors import ChainCancelledError, ChainNotFoundError, JobNotFoundError
from queuert.jobs import AbortReason
from queuert.observability.events import AttemptAborted, AttemptRetried, AttemptStarted, ChainClosed
from queuert.policies import LeasePolicy
from queuert.state.paging import Page
from tests.behaviours.conftest import NewHarness
from tests.support.harness import Harness
from tests.support.job_types import LATER, anything, echo, number, text
from tests.support.waiting import WAIT, Gate, until

last = JobType("last", input=int, output=int)
first = JobType("first", input=int, continues_with=last)
waits = JobType("waits", input=None, output=int, blockers=(number,))
STATES = JobTypes(number, text, anything, last, first, waits)


async def _status(harness: Harness, id: str) -> JobStatus:
    return (await harness.client.get_job(id)).status


async def test_a_job_through_all_its_states(new_harness: NewHarness) -> None:
    """P28, G36: waiting, running, between two attempts, and each way to end."""
    harness = new_harness(STATES)
    seen: list[JobStatus] = []

    async def handler(attempt: Attempt[int, Any]) -> Any:
        seen.append(await _status(harness, attempt.job_id))
        if attempt.number == 1:
            raise ValueError("not yet")
        return attempt.continue_with(last, attempt.input)

    async def ends(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    harness.handles(first, handler, retry=LATER)
    harness.handles(last, ends)
    client = harness.client
    good, bad = [await client.start_chain(first, value) for value in (1, -1)]
    scheduled = await client.start_chain(last, 1, run_at=after(hours=1))
    number_chain = await client.start_chain(number, 1)
    blocked = await client.start_chain(waits, None, blockers=[number_chain])
    assert [await _status(harness, chain.id) for chain in (good, scheduled, blocked)] == [
        "ready",
        "scheduled",
        "blocked",
    ]
    async with harness.worker():
        for chain in (good, bad):
            await harness.log.wait_for(AttemptStarted, job_id=chain.id)
        await _settled(harness, good.id, bad.id)
        failing = await client.get_job(good.id)
        assert (failing.status, failing.attempt) == (JobStatus.SCHEDULED, 1)
        assert failing.last_error is not None
        assert (failing.last_error.type, failing.last_error.message) == ("ValueError", "not yet")
        await client.trigger_jobs([good.id, bad.id])
        closed = await client.wait([good, bad], timeout=WAIT)
    assert seen == ["running"] * 4
    assert [chain.status for chain in closed] == ["completed", "failed"]
    [begun, end] = await client.list_chain_jobs(good)
    assert (begun.status, end.status, begun.continued_by) == ("continued", "completed", end.id)
    [_, end] = await client.list_chain_jobs(bad)
    assert end.status is JobStatus.FAILED
    await client.cancel_chain(scheduled)
    assert await _status(harness, scheduled.id) is JobStatus.CANCELLED


async def _settled(harness: Harness, *ids: str) -> None:
    """Wait until the first attempts of these jobs have ended."""
    for id in ids:
        await harness.log.wait_for(AttemptRetried, job_id=id)


async def test_a_job_tells_of_itself(harness: Harness) -> None:
    """P26, P32: its type, input, number of attempts, times and structured error, whoever asks."""

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        raise KeyError("which")

    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    chain = await harness.client.start_chain(anything, {"a": 1}, id="a:b:exp", priority=7)
    before = await harness.client.get_job("a:b:exp")
    assert (before.status, before.attempt, before.started_at, before.last_error) == (JobStatus.READY, 0, None, None)
    async with harness.worker():
        await chain.wait(WAIT)
    job = await harness.new_client().get_job("a:b:exp")
    assert (job.type, job.input, job.attempt, job.priority) == ("anything", {"a": 1}, 2, 7)
    assert job.created_at == before.created_at
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at.tzinfo is UTC
    assert job.created_at <= job.started_at <= job.finished_at
    assert job.last_error is not None
    assert (job.last_error.kind, job.last_error.type, job.last_error.message) == ("handler", "KeyError", "'which'")
    with pytest.raises(JobNotFoundError):
        await harness.client.get_job("b")


async def test_many_are_read_at_once(harness: Harness) -> None:
    """P35: in the order asked; one that is not there is an error that names it."""
    chains = await harness.client.start_chains([NewChain(number, value, id=f"n{value}") for value in range(50)])
    ids = [chain.id for chain in chains][::-1]
    assert [chain.id for chain in await harness.client.get_chains(ids)] == ids
    with pytest.raises(ChainNotFoundError, match="'missing'"):
        await harness.client.get_chains([*ids, "missing"])


async def test_the_result_is_there_for_whoever_has_the_id(harness: Harness) -> None:
    """P33: of the right type, as often as it is asked for; what is not there is an error."""
    harness.handles(number, echo)
    await harness.client.start_chain(number, 5, id="a")
    async with harness.worker():
        chain = await harness.client.get_chain("a", number)
        assert await chain.result(WAIT) == 5
    for _ in range(2):
        assert await (await harness.new_client().get_chain("a", number)).result() == 5
    with pytest.raises(ChainNotFoundError):
        await harness.client.get_chain("b", number)


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_what_cancelling_says(harness: Harness) -> None:
    """P59: done where the chain was open, not done where it had closed, an error where there is none."""
    harness.handles(number, echo)
    async with harness.worker():
        await (await harness.client.start_chain(number, 1, id="completed")).wait(WAIT)
    await harness.client.start_chain(number, 1, id="waiting")
    assert await harness.client.cancel_chains(["waiting", "completed"]) == [True, False]
    assert await harness.client.cancel_chain("waiting") is False
    assert (await harness.client.get_chain("completed")).status is ChainStatus.COMPLETED
    with pytest.raises(ChainNotFoundError):
        await harness.client.cancel_chain("missing")


async def test_what_was_cancelled_never_runs(harness: Harness) -> None:
    """P46, P60, P61: ready, scheduled and between two attempts; who waits hears of it."""

    async def handler(attempt: Attempt[int, int]) -> int:
        raise ValueError("not yet")

    harness.handles(number, handler, retry=LATER)
    harness.handles(text, echo)
    client = harness.client
    failing = await client.start_chain(number, 1)
    async with harness.worker():
        await _settled(harness, failing.id)
    ready = await client.start_chain(text, "unwanted")
    scheduled = await client.start_chain(text, "unwanted", run_at=after(seconds=0.01))
    chains = [failing, ready, scheduled]
    assert await client.cancel_chains(chains, reason="not wanted") == [True] * 3
    assert {event.status for event in harness.log.of(ChainClosed)} == {ChainStatus.CANCELLED}
    for chain in chains:
        with pytest.raises(ChainCancelledError, match="not wanted"):
            await chain.result(WAIT)
    async with harness.worker():
        assert await client.start_and_wait(text, "wanted") == "wanted"
    assert len(harness.log.of(AttemptStarted)) == 2


async def test_a_running_job_is_reported_that_it_is_cancelled(harness: Harness) -> None:
    """P59, P60, D18: it is cancelled as well; its handler is told why, and nothing of it is written."""
    gate, reasons = Gate(), []

    async def handler(attempt: Attempt[int, int]) -> int:
        try:
            await gate.pass_through(attempt)
        finally:
            reasons.append(attempt.abort.reason)
        return attempt.input

    harness.handles(number, handler, lease=LeasePolicy(seconds=86_400))
    chain = await harness.client.start_chain(number, 1, id="a")
    async with harness.worker():
        await gate.next()
        assert await harness.new_client().cancel_chain(chain)
        await harness.log.wait_for(AttemptAborted, job_id="a")
        # That is told by another thread than the handler's.
        await until(lambda: bool(reasons), "the handler is told")
    assert reasons == [AbortReason.CANCELLED]
    assert (await chain.refresh()).status is ChainStatus.CANCELLED


async def test_late_finishes_of_what_is_not_there_any_more(harness: Harness) -> None:
    """G14, D11: of a cancelled and of a deleted job nothing is written, and nothing comes back."""
    await harness.client.start_chain(number, 1, id="cancelled")
    cancelled = await harness.claim_and_die(number, seconds=60)
    await harness.client.start_chain(number, 1, id="deleted")
    deleted = await harness.claim_and_die(number, seconds=60)
    assert await harness.client.cancel_chain("cancelled")
    assert await harness.client.delete_chain("deleted")
    assert [await harness.finish_late(job, "1") for job in (cancelled, deleted)] == [False, False]
    assert (await harness.client.get_chain("cancelled")).status is ChainStatus.CANCELLED
    with pytest.raises(ChainNotFoundError):
        await harness.client.get_chain("deleted")


# --- looking at many --------------------------------------------------------------------------------------------------


async def test_lists_and_counts(harness: Harness) -> None:
    """G36, P81: what there is of each type and status, and which; a page at a time."""
    harness.handles(number, echo)
    async with harness.worker():
        done = await harness.client.start_chains([NewChain(number, value) for value in range(3)])
        await harness.client.wait(done, timeout=WAIT)
    await harness.client.start_chains([NewChain(text, "a", run_at=after(hours=1)), *[NewChain(text, "b")] * 4])
    counts = {(one.type, one.status.value): one.count for one in await harness.client.count_jobs()}
    assert counts == {("number", "completed"): 3, ("text", "scheduled"): 1, ("text", "ready"): 4}
    page: Page[Any] = await harness.client.list_jobs(job_types=[text], limit=3)
    rest = await harness.client.list_jobs(job_types=[text], limit=3, cursor=page.next_cursor)
    assert (len(page), len(rest), rest.next_cursor) == (3, 2, None)
    [later] = await harness.client.list_jobs(statuses=["scheduled"])
    assert (later.scheduled_at - later.created_at).total_seconds() == pytest.approx(3600, abs=1)
