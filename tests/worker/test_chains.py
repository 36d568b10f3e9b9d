"""Chains: linear, branched, looped, going to where they were; what their middle jobs keep; how errors leave them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import (
    AsyncClient,
    Attempt,
    ChainStatus,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    Processors,
    RetryPolicy,
    after,
)
from queuert.errors import JobFailedError, PayloadError, UndeclaredContinuationError
from queuert.jobs import Job
from queuert.observability.events import AttemptContinued, AttemptRetried, ChainClosed
from tests.support.harness import PostgresHarness
from tests.support.waiting import WAIT

end = JobType("end", input=str, output=str)
other_end = JobType("other_end", input=str, output=int)
middle = JobType("middle", input=str, continues_with=end)
begin = JobType("begin", input=str, continues_with=middle)
branch = JobType("branch", input=str, continues_with=(end, other_end))
turn = JobType("turn", input=int, output=int, continues_with="turn")
there = JobType("there", input=int, output=int, continues_with="back")
back: JobType[int, int] = JobType("back", input=int, continues_with="there")
TYPES = JobTypes(end, other_end, middle, begin, branch, turn, there, back)
MODES = pytest.mark.parametrize("mode", ["coroutine", "thread"])
HOW = pytest.mark.parametrize("how", ["returned", "finished", "prepared and finished"])
AT_ONCE = RetryPolicy(initial_delay=0.0)


class Line:
    """A client and processors of these types."""

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.client = AsyncClient(harness.state, TYPES, observability=harness.log)
        self.processors = Processors(TYPES, retry=AT_ONCE)

    def handles(self, job_type: JobType[Any, Any], handler: Any, **settings: Any) -> None:
        self.processors.handles(job_type, **settings)(handler)

    def worker(self, concurrency: int = 1) -> InProcessWorker:
        worker = InProcessWorker(self.client, self.processors, concurrency=concurrency)
        self.harness.workers.append(worker)
        return worker

    async def jobs(self, chain_id: str) -> list[Job]:
        ids = self.harness.rows("select id from queuert.job where chain_id = %s order by chain_index", chain_id)
        return [await self.client.get_job(id) for (id,) in ids]


@pytest.fixture
async def line(harness: PostgresHarness) -> AsyncIterator[Line]:
    line = Line(harness)
    yield line
    for worker in harness.workers:
        await worker.stop(shutdown_timeout=0)
    await line.client.aclose()


def finish(mode: str, how: str, outcome: Any) -> Any:
    """A handler of this mode that ends its attempt in this mode with what ``outcome(attempt)`` gives."""

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        if how == "prepared and finished":
            async with attempt.prepare() as tx:
                await tx.connection.execute("select 1")
        if how == "returned":
            return outcome(attempt)
        async with attempt.complete() as done:
            return done.finish(outcome(attempt))

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        if how == "prepared and finished":
            with attempt.prepare() as tx:
                tx.connection.execute("select 1")
        if how == "returned":
            return outcome(attempt)
        with attempt.complete() as done:
            return done.finish(outcome(attempt))

    return in_loop if mode == "coroutine" else in_thread


# --- patterns ---------------------------------------------------------------------------------------------------------


@MODES
@HOW
async def test_linear(line: Line, mode: str, how: str) -> None:
    line.handles(begin, finish(mode, how, lambda a: a.continue_with(middle, a.input + "1", output={"seen": a.input})))
    line.handles(middle, finish(mode, how, lambda a: a.continue_with(end, a.input + "2")))
    line.handles(end, finish(mode, how, lambda a: a.input + "3"))
    async with line.worker():
        chain = await line.client.start_chain(begin, "0", priority=4)
        assert await chain.result(WAIT) == "0123"
    jobs = await line.jobs(chain.id)
    assert [(job.type, job.status, job.chain_index) for job in jobs] == [
        ("begin", JobStatus.CONTINUED, 0),
        ("middle", JobStatus.CONTINUED, 1),
        ("end", JobStatus.COMPLETED, 2),
    ]
    assert [job.output for job in jobs] == [{"seen": "0"}, None, "0123"]
    assert [job.continued_by for job in jobs] == [jobs[1].id, jobs[2].id, None]
    assert [job.priority for job in jobs] == [4, 4, 4]
    assert jobs[0].id == chain.id
    closed = line.harness.log.of(ChainClosed, chain_id=chain.id)
    assert [(event.type, event.status) for event in closed] == [("begin", ChainStatus.COMPLETED)]
    assert len(line.harness.log.of(AttemptContinued)) == 2


@pytest.mark.parametrize(("input", "result", "tail"), [("words", "words!", "end"), ("17", 17, "other_end")])
async def test_branched(line: Line, input: str, result: Any, tail: str) -> None:
    async def choose(attempt: Attempt[str, str | int]) -> Outcome[str | int]:
        if attempt.input.isdigit():
            return attempt.continue_with(other_end, attempt.input)
        return attempt.continue_with(end, attempt.input)

    line.handles(branch, choose)
    line.handles(end, lambda attempt: attempt.input + "!")
    line.handles(other_end, lambda attempt: int(attempt.input))
    async with line.worker():
        chain = await line.client.start_chain(branch, input)
        assert await chain.result(WAIT) == result
    assert [job.type for job in await line.jobs(chain.id)] == ["branch", tail]


async def test_looped(line: Line) -> None:
    """The outputs of all turns are kept, in the model of the job type, since it has an output of its own."""

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 5:
            return 100
        with pytest.raises(PayloadError, match="output"):
            attempt.continue_with(turn, 1, output="five")
        return attempt.continue_with(turn, attempt.input + 1, output=attempt.input * 10)

    line.handles(turn, handler)
    async with line.worker():
        chain = await line.client.start_chain(turn, 0)
        assert await chain.result(WAIT) == 100
    assert [job.output for job in await line.jobs(chain.id)] == [0, 10, 20, 30, 40, 100]


async def test_going_to_where_it_was(line: Line) -> None:
    line.handles(there, lambda a: a.input if a.input >= 4 else a.continue_with(back, a.input + 1))
    line.handles(back, lambda a: a.continue_with(there, a.input + 1))
    async with line.worker():
        chain = await line.client.start_chain(there, 0)
        assert await chain.result(WAIT) == 4
    assert [job.type for job in await line.jobs(chain.id)] == ["there", "back"] * 2 + ["there"]


async def test_many_chains_beside_each_other(line: Line) -> None:
    line.handles(begin, lambda a: a.continue_with(middle, a.input + "1"))
    line.handles(middle, lambda a: a.continue_with(end, a.input + "2"))
    line.handles(end, lambda a: a.input + "3")
    async with line.worker(concurrency=10):
        chains = await line.client.start_chains([NewChain(begin, str(one)) for one in range(60)])
        assert [await chain.result(WAIT) for chain in chains] == [f"{one}123" for one in range(60)]
    assert line.harness.one("select count(*) from queuert.job") == 180


# --- continuations ----------------------------------------------------------------------------------------------------


async def test_a_continuation_has_settings_of_its_own(line: Line) -> None:
    line.handles(
        middle, lambda a: a.continue_with(end, "x", id="mine", priority=-3, run_at=after(hours=1), limit_key="k")
    )
    async with line.worker():
        chain = await line.client.start_chain(middle, "0", limit_key="other")
        await line.harness.log.wait_for(AttemptContinued)
    following = await line.client.get_job("mine")
    assert (following.status, following.priority, following.limit_key) == (JobStatus.SCHEDULED, -3, "k")
    assert following.chain_id == chain.id


@pytest.mark.quick
@pytest.mark.parametrize(
    "value", [float("nan"), object(), "nul\0", "x" * 2_000_000], ids=["nan", "object", "nul", "huge"]
)
async def test_what_a_middle_job_cannot_keep_is_refused(line: Line, value: Any) -> None:
    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        with pytest.raises(PayloadError, match="output"):
            attempt.continue_with(end, "x", output=value)
        return attempt.cancel("refused")

    line.handles(middle, handler)
    async with line.worker():
        chain = await (await line.client.start_chain(middle, "0")).wait(WAIT)
    assert str(chain.error) == "refused"


async def test_a_limit_key_that_cannot_be_stored_is_refused(line: Line) -> None:
    line.handles(middle, lambda a: a.continue_with(end, "x", limit_key="nul\0"), retry=RetryPolicy(max_attempts=1))
    async with line.worker():
        chain = await (await line.client.start_chain(middle, "0")).wait(WAIT)
    assert "limit key" in str(chain.error)


@MODES
@HOW
async def test_an_error_after_the_continuation_was_requested_for_rolls_it_back(line: Line, mode: str, how: str) -> None:
    def continues(attempt: Attempt[str, str]) -> Any:
        outcome = attempt.continue_with(end, attempt.input)
        if attempt.number == 1:
            raise ValueError("late")
        return outcome

    line.handles(middle, finish(mode, how, continues))
    line.handles(end, lambda a: a.input)
    async with line.worker():
        chain = await line.client.start_chain(middle, "x")
        assert await chain.result(WAIT) == "x"
    assert [(job.type, job.attempt) for job in await line.jobs(chain.id)] == [("middle", 2), ("end", 1)]
    assert [event.error.message for event in line.harness.log.of(AttemptRetried)] == ["late"]


async def test_an_undeclared_continuation_writes_nothing(line: Line) -> None:
    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        with pytest.raises(UndeclaredContinuationError):
            attempt.continue_with(middle, "x")
        return attempt.fail("undeclared")

    line.handles(middle, handler)
    async with line.worker():
        chain = await (await line.client.start_chain(middle, "0")).wait(WAIT)
    assert chain.status is ChainStatus.FAILED
    assert len(await line.jobs(chain.id)) == 1


async def test_a_chain_fails_where_it_stands(line: Line) -> None:
    line.handles(begin, lambda a: a.continue_with(middle, a.input, output="kept"))
    line.handles(middle, lambda a: a.fail("half-way"))
    async with line.worker():
        chain = await line.client.start_chain(begin, "0")
        with pytest.raises(JobFailedError, match="half-way"):
            await chain.result(WAIT)
    first, second = await line.jobs(chain.id)
    assert (first.status, first.output, first.last_error) == (JobStatus.CONTINUED, "kept", None)
    assert (second.status, second.output) == (JobStatus.FAILED, None)


async def test_a_continued_job_forgets_its_error(line: Line) -> None:
    def handler(attempt: Attempt[str, str]) -> Any:
        if attempt.number == 1:
            raise ValueError("once")
        return attempt.continue_with(end, "x")

    line.handles(middle, handler)
    line.handles(end, lambda a: a.input)
    async with line.worker():
        chain = await line.client.start_chain(middle, "0")
        await chain.result(WAIT)
    assert [job.last_error for job in await line.jobs(chain.id)] == [None, None]


# --- blockers across chains -------------------------------------------------------------------------------------------


@MODES
async def test_a_blocker_is_closed_by_its_last_job(line: Line, mode: str) -> None:
    line.handles(begin, lambda a: a.continue_with(middle, a.input + "1"))
    line.handles(
        middle, finish(mode, "returned", lambda a: a.continue_with(end, "".join(a.outputs_of(begin)) + a.input))
    )
    line.handles(end, lambda a: a.input + "3")
    first = await line.client.start_chain(begin, "a")
    waiting = await line.client.start_chain(middle, "b", blockers=[first])
    async with line.worker():
        # The middle job of the first chain waits for nothing, and so has no outputs.
        assert await waiting.result(WAIT) == "a13b3"


async def test_a_blocked_job_stays_blocked_while_its_blocker_is_tried_again(line: Line) -> None:
    seen: list[JobStatus] = []

    async def blocker(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append((await line.client.get_job("waiting")).status)
        if attempt.number < 4:
            raise ValueError("again")
        return 7

    line.handles(turn, blocker)
    line.handles(end, lambda a: str(a.output_of(turn)))
    first = await line.client.start_chain(turn, 0)
    waiting = await line.client.start_chain(end, "x", id="waiting", blockers=[first])
    async with line.worker():
        assert await waiting.result(WAIT) == "7"
    assert seen == [JobStatus.BLOCKED] * 4
    assert (await line.client.get_job("waiting")).attempt == 1


async def test_a_chain_of_blockers_runs_in_its_order(line: Line) -> None:
    ran: list[str] = []

    def handler(attempt: Attempt[str, str]) -> Any:
        ran.append(attempt.input)
        return "".join([*attempt.outputs_of(end), attempt.input])

    line.handles(end, handler)
    chain = await line.client.start_chain(end, "0")
    for one in range(1, 6):
        chain = await line.client.start_chain(end, str(one), blockers=[chain], priority=one)
    async with line.worker(concurrency=4):
        assert await chain.result(WAIT) == "012345"
    assert ran == list("012345")


async def test_one_blocker_of_many(line: Line) -> None:
    line.handles(turn, lambda a: a.input)
    line.handles(end, lambda a: f"{a.input}{a.output_of(turn)}")
    one = await line.client.start_chain(turn, 9)
    many = await line.client.start_chains([NewChain(end, str(index), blockers=[one]) for index in range(40)])
    async with line.worker(concurrency=8):
        assert [await chain.result(WAIT) for chain in many] == [f"{index}9" for index in range(40)]
