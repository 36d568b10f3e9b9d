"""Jobs that wait for chains: fan-out and join."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, Outcome, RetryPolicy, after
from queuert.errors import JobFailedError
from queuert.observability.events import AttemptStarted
from tests.support.harness import PostgresHarness
from tests.support.job_types import Order, echo, loop, number, order, relay, text
from tests.support.waiting import WAIT, Gate


async def test_outputs_come_in_the_order_of_the_blockers(harness: PostgresHarness) -> None:
    seen: list[Any] = []

    @harness.processors.handles(text)
    async def join(attempt: Attempt[str, str]) -> Outcome[str]:
        seen.extend((blocker.chain_id, blocker.type, blocker.status, blocker.output) for blocker in attempt.blockers)
        return attempt.input

    harness.handles(number, echo)
    harness.handles(order, echo)
    harness.handles(relay, lambda attempt: attempt.continue_with(number, attempt.input * 10))
    chains = await harness.client.start_chains(
        [
            NewChain(number, 1, id="z"),
            NewChain(order, Order(name="tea"), id="a"),
            NewChain(relay, 4, id="m", priority=-5),
        ]
    )
    joined = await harness.client.start_chain(text, "joined", blockers=[*chains, "z"])
    assert (await harness.job(joined.id)).status is JobStatus.BLOCKED
    async with harness.worker(concurrency=3):
        assert await joined.result(WAIT) == "joined"
    completed = ChainStatus.COMPLETED
    assert seen == [
        ("z", "number", completed, 1),
        ("a", "order", completed, Order(name="tea")),
        ("m", "relay", completed, 40),
    ]


async def test_a_job_waits_for_the_last_of_many(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(loop)
    async def last(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, echo)
    harness.handles(text, echo)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(30)])
    slow = await harness.client.start_chain(loop, 0)
    joined = await harness.client.start_chain(text, "x", blockers=[*chains, slow])
    async with harness.worker(concurrency=8):
        await harness.client.wait(chains, timeout=WAIT)
        await gate.next()
        assert (await harness.job(joined.id)).open_blockers == 1
        gate.open()
        assert await joined.result(WAIT) == "x"
    assert len(harness.log.of(AttemptStarted, job_id=joined.id)) == 1


@pytest.mark.parametrize("finish", ["fail", "cancel"])
async def test_a_blocker_that_fails_fails_the_dependent(harness: PostgresHarness, finish: str) -> None:
    ran: list[str] = []

    @harness.processors.handles(number)
    async def blocker(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.fail("for a reason") if finish == "fail" else attempt.cancel("for a reason")

    @harness.processors.handles(text)
    async def dependent(attempt: Attempt[str, str]) -> Outcome[str]:
        ran.append(attempt.job_id)
        return attempt.input

    failing = await harness.client.start_chain(number, 1, id="failing")
    waiting = await harness.client.start_chain(text, "x", blockers=[failing])
    further = await harness.client.start_chain(text, "y", blockers=[waiting])
    another = await harness.client.start_chain(text, "x", blockers=[await harness.client.start_chain(number, 1)])
    async with harness.worker():
        with pytest.raises(JobFailedError, match=r"for a reason\.\nIt is chain 'failing'"):
            await waiting.result(WAIT)
        with pytest.raises(JobFailedError):
            await further.result(WAIT)
        await another.wait(WAIT)
    assert ran == []
    job = await harness.job(waiting.id)
    # Failures are grouped by it, so it names no chain.
    assert waiting.error is not None
    assert another.error is not None
    assert waiting.error.summary == another.error.summary
    ended = "failed" if finish == "fail" else "cancelled"
    assert f": a chain of type 'number', which it waited for, {ended}: for a reason" in waiting.error.summary
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "blocker_failed"
    assert job.last_error.traceback is None, "the handler did not run"


async def test_blockers_that_closed_before_do_not_hold(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    harness.handles(text, lambda attempt: str([one.output for one in attempt.blockers]))
    async with harness.worker():
        done = await (await harness.client.start_chain(number, 4)).wait(WAIT)
        chain = await harness.client.start_chain(text, "", blockers=[done])
        assert await chain.result(WAIT) == "[4]"


async def test_a_continuation_may_wait_for_chains(harness: PostgresHarness) -> None:
    @harness.processors.handles(relay)
    async def fan_out(attempt: Attempt[int, int]) -> Outcome[int]:
        parts = await harness.client.start_chains([NewChain(loop, one) for one in range(3)])
        return attempt.continue_with(number, 0, blockers=parts)

    harness.handles(loop, echo)
    harness.handles(number, lambda attempt: sum(one.output for one in attempt.blockers))
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(relay, 1)
        assert await chain.result(WAIT) == 3


async def test_a_blocked_job_keeps_its_schedule(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    harness.handles(text, echo)
    async with harness.worker():
        first = await harness.client.start_chain(number, 1)
        later = await harness.client.start_chain(text, "x", blockers=[first], run_at=after(hours=1))
        await first.wait(WAIT)
        assert (await harness.job(later.id)).status is JobStatus.SCHEDULED


async def test_an_output_of_a_blocker_that_cannot_be_read_is_a_failed_attempt(harness: PostgresHarness) -> None:
    harness.handles(text, echo, retry=RetryPolicy(max_attempts=1))
    harness.insert("number", "1", id="odd")
    harness.rows(
        "update queuert.job set status = 'completed', chain_status = 'completed', finished_at = now(),"
        " chain_closed_at = now(), output = '\"not a number\"' where id = 'odd'"
    )
    async with harness.worker():
        chain = await harness.client.start_chain(text, "x", blockers=["odd"])
        with pytest.raises(JobFailedError, match="output of job type 'number'"):
            await chain.result(WAIT)
        assert await (await harness.client.start_chain(text, "good")).result(WAIT) == "good"


async def test_a_handler_that_wants_the_output_of_a_failed_blocker_is_in_the_traceback(
    harness: PostgresHarness,
) -> None:
    async def wants_output(attempt: Attempt[str, str]) -> Outcome[str]:
        return str(attempt.output_of(number))

    harness.handles(number, lambda attempt: attempt.fail("for a reason"))
    harness.handles(text, wants_output, on_blocker_failure="run")
    async with harness.worker():
        failing = await harness.client.start_chain(number, 1)
        waiting = await harness.client.start_chain(text, "x", blockers=[failing])
        with pytest.raises(JobFailedError):
            await waiting.result(WAIT)
    assert waiting.error is not None
    assert "wants_output" in (waiting.error.traceback or "")
