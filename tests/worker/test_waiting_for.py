"""`attempt.wait_for(...)`: a running job starts chains, or names some, and is run again when they have closed."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import (
    AsyncClient,
    Attempt,
    Deduplicate,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    RetryPolicy,
    after,
)
from queuert.errors import (
    BlockerFailedError,
    ConfigurationError,
    DefinitionError,
    InvalidIdentifierError,
    JobFailedError,
)
from queuert.observability.events import AttemptStarted, AttemptWaiting
from queuert.outcomes import WaitFor
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, Order, echo, loop, number, order, relay, text
from tests.support.waiting import WAIT, Gate
from tests.worker.completing import WRITE, effects_of

stranger = JobType("stranger", input=int, output=int)
ONCE = RetryPolicy(max_attempts=1)


def children(*values: int) -> list[NewChain[int]]:
    return [NewChain(number, value) for value in values]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("how", ["returned", "finished"])
async def test_it_starts_chains_and_joins_them(harness: PostgresHarness, mode: str, how: str) -> None:
    async def in_loop(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            if how == "returned":
                return attempt.wait_for(*children(3, 1, 2))
            async with attempt.complete() as tx:
                return tx.finish(attempt.wait_for(*children(3, 1, 2)))
        return str(attempt.outputs_of(number))

    def in_thread(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            if how == "returned":
                return attempt.wait_for(*children(3, 1, 2))
            with attempt.complete() as tx:
                return tx.finish(attempt.wait_for(*children(3, 1, 2)))
        return str(attempt.outputs_of(number))

    harness.handles(text, in_loop if mode == "coroutine" else in_thread)
    harness.handles(number, echo)
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(text, "join")
        assert await chain.result(WAIT) == "[3, 1, 2]"
    job = await harness.job(chain.id)
    assert (job.attempt, job.uncounted, job.last_error) == (2, 1, None)
    assert [event.blockers for event in harness.log.of(AttemptWaiting, job_id=chain.id)] == [3]


async def test_it_does_not_run_before_the_last_has_closed(harness: PostgresHarness) -> None:
    gate = Gate()

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            return attempt.wait_for(*children(1, 2), NewChain(loop, 3))
        return "joined"

    async def slow(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return 0

    harness.handles(text, parent)
    harness.handles(number, echo)
    harness.handles(loop, slow)
    async with harness.worker(concurrency=4):
        chain = await harness.client.start_chain(text, "x")
        await gate.next()
        for (id,) in harness.rows("select id from queuert.job where type = 'number'"):
            await (await harness.client.get_chain(id)).wait(WAIT)
        job = await harness.job(chain.id)
        assert (job.status, job.open_blockers) == (JobStatus.BLOCKED, 1)
        gate.open()
        assert await chain.result(WAIT) == "joined"
    assert len(harness.log.of(AttemptStarted, job_id=chain.id)) == 2


async def test_it_may_wait_in_rounds(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[int, int]) -> Outcome[int]:
        done = attempt.outputs_of(number)
        return attempt.wait_for(*children(len(done), 10)) if len(done) < 6 else sum(done)

    harness.handles(loop, parent)
    harness.handles(number, echo)
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(loop, 0)
        assert await chain.result(WAIT) == 0 + 10 + 2 + 10 + 4 + 10
    assert (await harness.job(chain.id)).uncounted == 3


async def test_waiting_does_not_use_up_attempts(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[int, int]) -> Outcome[int]:
        if len(attempt.blockers) < 3:
            return attempt.wait_for(*children(1))
        raise ValueError("only this counts")

    harness.handles(loop, parent, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    harness.handles(number, echo)
    async with harness.worker():
        chain = await (await harness.client.start_chain(loop, 0)).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.uncounted) == (JobStatus.FAILED, 5, 3)


async def test_it_waits_for_what_others_started(harness: PostgresHarness) -> None:
    seen: list[list[tuple[str, Any]]] = []

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if len(attempt.blockers) == 1:
            other = await harness.client.start_chain(number, 2, id="handle")
            return attempt.wait_for("id", other, NewChain(number, 4, id="chosen", priority=3, limit_key="k"), "id")
        seen.append([(one.chain_id, one.output) for one in attempt.blockers])
        return "joined"

    harness.handles(text, parent)
    harness.handles(number, echo)
    first, _ = await harness.client.start_chains([NewChain(number, 0, id="first"), NewChain(number, 1, id="id")])
    async with harness.worker():
        chain = await harness.client.start_chain(text, "x", blockers=[first])
        assert await chain.result(WAIT) == "joined"
    assert seen == [[("first", 0), ("id", 1), ("handle", 2), ("chosen", 4)]]
    assert harness.rows("select priority, limit_key from queuert.job where id = 'chosen'") == [(3, "k")]


async def test_a_child_may_be_scheduled_and_chains_of_children_may_be_long(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            return attempt.wait_for(NewChain(relay, 4, run_at=after(seconds=0.01)))
        return str(attempt.output_of(relay))

    harness.handles(text, parent)
    harness.handles(relay, lambda attempt: attempt.continue_with(number, attempt.input * 10))
    harness.handles(number, echo)
    async with harness.worker():
        assert await (await harness.client.start_chain(text, "x")).result(WAIT) == "40"


async def test_children_that_closed_already_do_not_hold(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        return "joined" if attempt.blockers else attempt.wait_for("done")

    harness.handles(text, parent)
    harness.handles(number, echo)
    async with harness.worker():
        await (await harness.client.start_chain(number, 1, id="done")).wait(WAIT)
        assert await (await harness.client.start_chain(text, "x")).result(WAIT) == "joined"


async def test_the_handlers_writes_commit_with_the_wait(harness: PostgresHarness) -> None:
    effects = effects_of(harness)

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if attempt.blockers:
            return "joined"
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            done = tx.finish(attempt.wait_for(*children(1)))
            if attempt.number == 1:
                raise ValueError("rolled back")
            return done

    harness.handles(text, parent)
    harness.handles(number, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(text, "x")
        assert await chain.result(WAIT) == "joined"
    assert effects() == [(chain.id, 2)]
    assert harness.one("select count(*) from queuert.job where type = 'number'") == 1


async def test_a_child_that_fails_fails_the_parent(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        return "joined" if attempt.blockers else attempt.wait_for(*children(1, 2))

    async def child(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.fail("no luck") if attempt.input == 2 else 1

    harness.handles(text, parent)
    harness.handles(number, child)
    async with harness.worker():
        chain = await harness.client.start_chain(text, "x")
        with pytest.raises(JobFailedError, match="no luck"):
            await chain.result(WAIT)
    error = (await harness.job(chain.id)).last_error
    assert error is not None
    assert error.kind == "blocker_failed"


@pytest.mark.parametrize("finish", ["fail", "cancel"])
async def test_the_parent_may_run_with_the_failure_in_hand(harness: PostgresHarness, finish: str) -> None:
    reported: list[Any] = []

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            return attempt.wait_for(*children(1, 2), NewChain(order, Order(name="tea")))
        reported.extend((one.output, one.status, str(one.error)) for one in attempt.blockers)
        assert [one.chain_id for one in attempt.failed_blockers] == [attempt.blockers[1].chain_id]
        for ask in (attempt.outputs_of, attempt.output_of):
            with pytest.raises(BlockerFailedError if ask == attempt.outputs_of else DefinitionError) as raised:
                ask(number)
            if ask == attempt.outputs_of:
                assert attempt.blockers[1].chain_id in str(raised.value)
        return attempt.output_of(order).name

    async def child(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 2:
            return attempt.fail("no luck") if finish == "fail" else attempt.cancel("no luck")
        return attempt.input

    harness.handles(text, parent, on_blocker_failure="run")
    harness.handles(number, child)
    harness.handles(order, echo)
    async with harness.worker():
        assert await (await harness.client.start_chain(text, "x")).result(WAIT) == "tea"
    assert [one[:2] for one in reported[:2]] == [
        (1, "completed"),
        (None, "failed" if finish == "fail" else "cancelled"),
    ]
    assert "no luck" in reported[1][2]


async def test_the_failure_passes_on_when_the_handler_lets_it(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        return str(attempt.outputs_of(number)) if attempt.blockers else attempt.wait_for(*children(2))

    harness.handles(text, parent, on_blocker_failure="run", retry=AT_ONCE)
    harness.handles(number, lambda attempt: attempt.fail("no luck"))
    async with harness.worker():
        chain = await (await harness.client.start_chain(text, "x")).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 2)


async def test_a_child_that_failed_may_be_retried_and_waited_for_again(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if not attempt.blockers:
            return attempt.wait_for(*children(1, 2))
        if again := [one.chain_id for one in attempt.failed_blockers]:
            for chain_id in again:
                await harness.client.retry_chain(chain_id)
            return attempt.wait_for(*again)
        return str(attempt.outputs_of(number))

    def child(attempt: Attempt[int, int]) -> Any:
        return attempt.fail("no luck") if (attempt.input, attempt.number) == (2, 1) else attempt.input

    harness.handles(text, parent, on_blocker_failure="run")
    harness.handles(number, child)
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(text, "x")
        assert await chain.result(WAIT) == "[1, 2]"
    assert (await harness.job(chain.id)).attempt == 3


@pytest.mark.timeout(6 * WAIT)
async def test_a_thousand_children(harness: PostgresHarness) -> None:
    async def parent(attempt: Attempt[int, int]) -> Outcome[int]:
        return sum(attempt.outputs_of(number)) if attempt.blockers else attempt.wait_for(*children(*range(1000)))

    harness.handles(loop, parent)
    harness.handles(number, echo)
    async with harness.worker(concurrency=50):
        assert await (await harness.client.start_chain(loop, 0)).result(3 * WAIT) == sum(range(1000))


# --- refused ----------------------------------------------------------------------------------------------------------

BAD: Any = "one"
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (lambda a: a.wait_for(), DefinitionError, "at least one chain"),
    "what it waited for already": (lambda a: a.wait_for("first"), DefinitionError, "circle"),
    "its own chain": (lambda a: a.wait_for(a.chain_id), DefinitionError, "own chain"),
    "its own chain anew": (lambda a: a.wait_for(NewChain(number, 1, id=a.chain_id)), DefinitionError, "own chain"),
    "blockers": (lambda a: a.wait_for(NewChain(number, 1, blockers=["first"])), DefinitionError, "no blockers"),
    "deduplication": (
        lambda a: a.wait_for(NewChain(number, 1, deduplication=Deduplicate("k"))),
        DefinitionError,
        "deduplication",
    ),
    "attach": (lambda a: a.wait_for(NewChain(number, 1, id="x", attach=True)), DefinitionError, "attach"),
    "an id twice": (
        lambda a: a.wait_for(NewChain(number, 1, id="x"), NewChain(number, 2, id="x")),
        InvalidIdentifierError,
        "twice",
    ),
    "an id to be started and named": (
        lambda a: a.wait_for("x", NewChain(number, 2, id="x")),
        InvalidIdentifierError,
        "twice",
    ),
    "an unknown type": (lambda a: a.wait_for(NewChain(stranger, 1)), LookupError, "stranger"),
    "a bad input": (lambda a: a.wait_for(NewChain(number, BAD)), ValueError, "input"),
    "a bad id": (lambda a: a.wait_for("nul\0"), InvalidIdentifierError, "chain id"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_it_refuses(harness: PostgresHarness, what: str) -> None:
    ask, error, message = REFUSED[what]
    seen: list[BaseException] = []

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        with pytest.raises(error, match=message) as raised:
            ask(attempt)
        seen.append(raised.value)
        return "refused"

    harness.handles(text, parent, retry=ONCE)
    harness.handles(number, echo)
    first = await harness.client.start_chain(number, 0, id="first")
    async with harness.worker():
        assert await (await harness.client.start_chain(text, "x", blockers=[first])).result(WAIT) == "refused"
    assert len(seen) == 1
    assert harness.one("select count(*) from queuert.job") == 2


@pytest.mark.parametrize("how", ["returned", "finished"])
@pytest.mark.parametrize("what", ["a chain that does not exist", "an id that is taken"])
async def test_what_the_store_refuses_is_a_failed_attempt(harness: PostgresHarness, what: str, how: str) -> None:
    def outcome(attempt: Attempt[str, str]) -> WaitFor:
        if what == "an id that is taken":
            return attempt.wait_for(NewChain(number, 1), NewChain(number, 1, id="taken"))
        return attempt.wait_for(NewChain(number, 1), "nowhere")

    async def parent(attempt: Attempt[str, str]) -> Outcome[str]:
        if how == "returned":
            return outcome(attempt)
        async with attempt.complete() as tx:
            return tx.finish(outcome(attempt))

    harness.handles(text, parent, retry=ONCE)
    await harness.client.start_chain(number, 0, id="taken")
    async with harness.worker():
        chain = await (await harness.client.start_chain(text, "x")).wait(WAIT)
    assert (await harness.job(chain.id)).status is JobStatus.FAILED
    assert ("taken" if what == "an id that is taken" else "nowhere") in str(chain.error)
    assert harness.one("select count(*) from queuert.job") == 2


async def test_a_worker_knows_the_types_of_its_client_only(harness: PostgresHarness) -> None:
    """A job type that only another program registered cannot be started, and can be waited for."""
    async with AsyncClient(harness.state, JobTypes(stranger)) as other:
        await other.start_chain(stranger, 1, id="elsewhere")
    harness.handles(text, lambda attempt: attempt.wait_for("elsewhere"))
    async with harness.worker():
        chain = await harness.client.start_chain(text, "x")
        await harness.log.wait_for(AttemptWaiting)
    assert (await harness.job(chain.id)).status is JobStatus.BLOCKED


@pytest.mark.parametrize("executor", [None, "process"])
async def test_what_jobs_inherit(harness: PostgresHarness, executor: Any) -> None:
    """Limit key, priority and attributes of a child, unless it has its own; the limit key of a continuation."""
    harness.handles(text, inheriting_parent, executor=executor)
    harness.handles(relay, inheriting_relay, executor=executor)
    harness.handles(number, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(
            text, "x", priority=3, limit_key="tenant", attributes={"user": 17}, max_attempts=4
        )
        await chain.result(WAIT)
    blockers = await harness.client.get_blockers(chain.id)
    chains = await harness.client.get_chains([one.chain_id for one in blockers])
    assert [one.attributes for one in chains] == [{"user": "17"}, {"user": "18"}]
    jobs = [list(await harness.client.list_chain_jobs(one)) for one in chains]
    assert [(job.limit_key, job.priority) for job in jobs[0]] == [("tenant", 3), ("tenant", 3)]
    assert [(job.limit_key, job.priority) for job in jobs[1]] == [("own", 5), ("own", 5)]
    assert {job.max_attempts for one in jobs for job in one} == {None}


def inheriting_parent(attempt: Attempt[str, str]) -> Outcome[str]:
    if attempt.blockers:
        return "done"
    own = NewChain(relay, 2, priority=5, limit_key="own", attributes={"user": 18})
    return attempt.wait_for(NewChain(relay, 1), own, inherit=["attributes", "limit_key", "priority"])


def inheriting_relay(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.continue_with(number, attempt.input, inherit=["limit_key"])


async def test_what_cannot_be_inherited(harness: PostgresHarness) -> None:
    for_continuations: list[Any] = [["attributes"], "limit_key", ["id"]]
    for_children: Any = "priority"

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for inherit in for_continuations:
            with pytest.raises(ConfigurationError, match="inherit must be a sequence of 'limit_key'"):
                attempt.continue_with(number, 1, inherit=inherit)
        with pytest.raises(ConfigurationError, match="inherit must be a sequence of 'attributes', 'limit_key'"):
            attempt.wait_for(NewChain(number, 1), inherit=for_children)
        return attempt.continue_with(number, 1)

    harness.handles(relay, handler)
    harness.handles(number, echo)
    async with harness.worker():
        assert await (await harness.client.start_chain(relay, 1, limit_key="tenant")).result(WAIT) == 1
    [_, last] = await harness.client.list_jobs(oldest_first=True)
    assert last.limit_key is None
