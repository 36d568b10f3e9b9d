"""Jobs that wait for chains: fan-out and join."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, Outcome, RetryPolicy, after
from queuert.errors import JobFailedError
from queuert.observability.events import AttemptStarted
from tests.worker.support import WAIT, Gate, Order, Stage, echo, loop, number, order, relay, text


async def test_outputs_come_in_the_order_of_the_blockers(stage: Stage) -> None:
    seen: list[Any] = []

    @stage.processors.handles(text)
    async def join(attempt: Attempt[str, str]) -> Outcome[str]:
        seen.extend((blocker.chain_id, blocker.type, blocker.status, blocker.output) for blocker in attempt.blockers)
        return attempt.input

    stage.handles(number, echo)
    stage.handles(order, echo)
    stage.handles(relay, lambda attempt: attempt.continue_with(number, attempt.input * 10))
    chains = await stage.client.start_chains(
        [
            NewChain(number, 1, id="z"),
            NewChain(order, Order(name="tea"), id="a"),
            NewChain(relay, 4, id="m", priority=-5),
        ]
    )
    joined = await stage.client.start_chain(text, "joined", blockers=[*chains, "z"])
    assert (await stage.job(joined.id)).status is JobStatus.BLOCKED
    async with stage.worker(concurrency=3):
        assert await joined.result(WAIT) == "joined"
    completed = ChainStatus.COMPLETED
    assert seen == [
        ("z", "number", completed, 1),
        ("a", "order", completed, Order(name="tea")),
        ("m", "relay", completed, 40),
    ]


async def test_a_job_waits_for_the_last_of_many(stage: Stage) -> None:
    gate = Gate()

    @stage.processors.handles(loop)
    async def last(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    stage.handles(number, echo)
    stage.handles(text, echo)
    chains = await stage.client.start_chains([NewChain(number, one) for one in range(30)])
    slow = await stage.client.start_chain(loop, 0)
    joined = await stage.client.start_chain(text, "x", blockers=[*chains, slow])
    async with stage.worker(concurrency=8):
        await stage.client.wait(chains, timeout=WAIT)
        await gate.next()
        assert (await stage.job(joined.id)).open_blockers == 1
        gate.open()
        assert await joined.result(WAIT) == "x"
    assert len(stage.log.of(AttemptStarted, job_id=joined.id)) == 1


@pytest.mark.parametrize("finish", ["fail", "cancel"])
async def test_a_blocker_that_fails_fails_the_dependent(stage: Stage, finish: str) -> None:
    ran: list[str] = []

    @stage.processors.handles(number)
    async def blocker(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.fail("for a reason") if finish == "fail" else attempt.cancel("for a reason")

    @stage.processors.handles(text)
    async def dependent(attempt: Attempt[str, str]) -> Outcome[str]:
        ran.append(attempt.job_id)
        return attempt.input

    failing = await stage.client.start_chain(number, 1, id="failing")
    waiting = await stage.client.start_chain(text, "x", blockers=[failing])
    further = await stage.client.start_chain(text, "y", blockers=[waiting])
    async with stage.worker():
        with pytest.raises(JobFailedError, match=r"failing.*for a reason"):
            await waiting.result(WAIT)
        with pytest.raises(JobFailedError):
            await further.result(WAIT)
    assert ran == []
    job = await stage.job(waiting.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "blocker_failed"


async def test_blockers_that_closed_before_do_not_hold(stage: Stage) -> None:
    stage.handles(number, echo)
    stage.handles(text, lambda attempt: str([one.output for one in attempt.blockers]))
    async with stage.worker():
        done = await (await stage.client.start_chain(number, 4)).wait(WAIT)
        chain = await stage.client.start_chain(text, "", blockers=[done])
        assert await chain.result(WAIT) == "[4]"


async def test_a_continuation_may_wait_for_chains(stage: Stage) -> None:
    @stage.processors.handles(relay)
    async def fan_out(attempt: Attempt[int, int]) -> Outcome[int]:
        parts = await stage.client.start_chains([NewChain(loop, one) for one in range(3)])
        return attempt.continue_with(number, 0, blockers=parts)

    stage.handles(loop, echo)
    stage.handles(number, lambda attempt: sum(one.output for one in attempt.blockers))
    async with stage.worker(concurrency=2):
        chain = await stage.client.start_chain(relay, 1)
        assert await chain.result(WAIT) == 3


async def test_a_blocked_job_keeps_its_schedule(stage: Stage) -> None:
    stage.handles(number, echo)
    stage.handles(text, echo)
    async with stage.worker():
        first = await stage.client.start_chain(number, 1)
        later = await stage.client.start_chain(text, "x", blockers=[first], run_at=after(hours=1))
        await first.wait(WAIT)
        assert (await stage.job(later.id)).status is JobStatus.SCHEDULED


async def test_an_output_of_a_blocker_that_cannot_be_read_is_a_failed_attempt(stage: Stage) -> None:
    stage.handles(text, echo, retry=RetryPolicy(max_attempts=1))
    stage.insert("number", "1", id="odd")
    stage.rows(
        "update queuert.job set status = 'completed', chain_status = 'completed', finished_at = now(),"
        " chain_closed_at = now(), output = '\"not a number\"' where id = 'odd'"
    )
    async with stage.worker():
        chain = await stage.client.start_chain(text, "x", blockers=["odd"])
        with pytest.raises(JobFailedError, match="output of job type 'number'"):
            await chain.result(WAIT)
        assert await (await stage.client.start_chain(text, "good")).result(WAIT) == "good"
