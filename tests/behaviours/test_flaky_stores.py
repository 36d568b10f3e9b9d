"""Workers whose store is out of reach now and then: everything is finished, and everything exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from queuert import Attempt, InProcessWorker, NewChain, RetryPolicy
from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptAborted, AttemptCompleted, AttemptStarted, FinishRejected, JobReaped
from queuert.policies import Backoff, LeasePolicy
from queuert.state.types import ClaimRequest
from tests.behaviours.flaky_state import FlakyState, nth, seeded
from tests.behaviours.support import QUICK, CallerHarness
from tests.support.job_types import WATCHED, echo, last, middle, number, text, total
from tests.support.waiting import Gate, until

SHORT = LeasePolicy(seconds=1.0, renew_every=0.2)
STUBBORN = RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=1000, max_crashes=1000)


@pytest.fixture(autouse=True)
def _brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that failed begin again soon."""
    monkeypatch.setattr(Backoff, "delay", lambda self, failures: 0.01)


@pytest.fixture
async def harness(dsn: str) -> AsyncIterator[CallerHarness]:
    """A caller whose own link is sound, and a ledger of all finishes that were ever written."""
    harness = CallerHarness(dsn, notify=InProcessNotify())
    harness.processors = harness.new_processors(retry=STUBBORN, lease=SHORT)
    harness.rows("create table effects (job text, value int)")
    harness.rows("create table finishes (job text, status text)")
    harness.rows(
        "create function note_ending() returns trigger language plpgsql as $$ begin"
        " if new.status in ('continued', 'completed', 'failed', 'cancelled') then"
        " insert into public.finishes values (new.id, new.status); end if; return null; end $$"
    )
    harness.rows(
        "create trigger note_ending after insert or update of status on queuert.job"
        " for each row execute function note_ending()"
    )
    yield harness
    await harness.close()


def handlers(harness: CallerHarness, go_on: asyncio.Event | None = None) -> None:
    """One of each kind: a returned output, blocks sync and async, a continuation, a join. One job waits to go on."""

    async def returns(attempt: Attempt[int, int]) -> int:
        if go_on and not attempt.input:
            await go_on.wait()
        return attempt.input * 2

    def writes_in_a_thread(attempt: Attempt[str, str]) -> Any:
        with attempt.prepare() as tx:
            tx.connection.execute("select 1")
        with attempt.complete() as done:
            done.connection.execute("insert into effects values (%s, 1)", [attempt.job_id])
            return done.finish(attempt.input)

    async def goes_on(attempt: Attempt[int, str]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effects values (%s, 2)", [attempt.job_id])
            return tx.finish(attempt.continue_with(last, attempt.input + 1))

    async def ends(attempt: Attempt[int, str]) -> str:
        return f"{attempt.input}"

    async def joins(attempt: Attempt[str, int]) -> int:
        return sum(attempt.outputs_of(number))

    harness.handles(number, returns)
    harness.handles(text, writes_in_a_thread)
    harness.handles(middle, goes_on)
    harness.handles(last, ends)
    harness.handles(total, joins)


async def all_of_it(harness: CallerHarness, size: int) -> None:
    """Start some chains of every kind, and see each end once, with its own output."""
    numbers = await harness.caller.start_chains([NewChain(number, value) for value in range(size)])
    words = await harness.caller.start_chains([NewChain(text, str(value)) for value in range(size)])
    steps = await harness.caller.start_chains([NewChain(middle, value) for value in range(size)])
    join = await harness.caller.start_chain(total, "x", blockers=numbers)
    # Without a timeout: the look at its end would hide that a notification is missing.
    closed = await harness.caller.wait([*numbers, *words, *steps, join])
    assert [await harness.caller.result(chain) for chain in closed] == [
        *(value * 2 for value in range(size)),
        *(str(value) for value in range(size)),
        *(str(value + 1) for value in range(size)),
        size * (size - 1),
    ]
    wanted = {"completed": 3 * size + 1, "continued": size}
    assert Counter(row[0] for row in harness.rows("select status from finishes")) == wanted
    assert Counter(row[0] for row in harness.rows("select status from queuert.job")) == wanted
    effects = Counter(row[0] for row in harness.rows("select job from effects"))
    assert effects == Counter(chain.id for chain in [*words, *steps])


OPERATIONS = (
    "claim",
    "finish",
    "next_due",
    "reap",
    "transaction",
    "commit",
    "release_stranded",
    "due_schedules",
    "renew",
)


def places() -> Iterator[Any]:
    for operation in OPERATIONS:
        yield pytest.param(operation, "before", id=f"{operation} does not arrive")
        if operation not in ("transaction", "commit"):
            yield pytest.param(operation, "after", id=f"answer to {operation} is lost")


@pytest.mark.quick
@pytest.mark.parametrize(("operation", "when"), list(places()))
async def test_one_operation_fails(harness: CallerHarness, operation: str, when: str) -> None:
    """Its first calls, three in a row. No lease is lost by it, not even that of a claim whose answer was.

    Nor is a finish said to be refused that was written: its answer alone was lost.
    """
    go_on = asyncio.Event()
    harness.processors = harness.new_processors(retry=STUBBORN, lease=LeasePolicy(seconds=15.0, renew_every=0.2))
    handlers(harness, go_on)
    state = FlakyState(harness.state, nth(operation, when, 1, 2, 3))
    async with harness.worker(state=state, concurrency=2, poll_interval=QUICK):
        finished = asyncio.create_task(all_of_it(harness, 3))
        await until(lambda: state.struck[operation, when] > 0, "the link has failed")
        go_on.set()
        await finished
    assert set(state.struck) == {(operation, when)}
    assert harness.log.of(JobReaped) == []
    assert harness.log.of(FinishRejected) == []
    assert len(harness.log.of(AttemptCompleted)) == 10


async def started(worker: InProcessWorker) -> None:
    """Start it, as often as the link fails meanwhile."""
    while True:
        try:
            return await worker.start()
        except StateUnavailableError:
            continue


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_link_that_fails_at_random(harness: CallerHarness, seed: int, slots: int, workers: int) -> None:
    """One call in five, whichever it is."""
    handlers(harness)
    states = [FlakyState(harness.state, seeded(seed + place, 0.2)) for place in range(workers)]
    running = [harness.worker(state=state, concurrency=slots, poll_interval=QUICK) for state in states]
    for worker in running:
        await started(worker)
    await all_of_it(harness, 8)
    assert sum(state.struck.total() for state in states) > 5


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("workers", [1, 3])
async def test_the_database_ends_the_connections(harness: CallerHarness, slots: int, workers: int) -> None:
    """Again and again, in the midst of whatever they were doing."""
    handlers(harness)
    for _ in range(workers):
        await harness.worker(concurrency=slots, poll_interval=QUICK).start()

    async def cut() -> None:
        async with await psycopg.AsyncConnection.connect(harness.dsn, autocommit=True) as connection:
            # Where it takes longer than this, the machine is so slow that next to nothing gets done between two cuts.
            for _ in range(100):
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                    " and application_name like 'queuert%%' and pid <> pg_backend_pid() and random() < 0.3"
                )
                await asyncio.sleep(0.05)

    # The caller starts its chains with ids of its own, and attaches, so that it can ask again.
    cutting = asyncio.create_task(cut())
    try:
        for value in range(10):
            for job_type in (number, middle):
                await requested_until_it_is_answered(harness, job_type, value)
        await until(
            lambda: harness.rows("select count(*) from queuert.job where chain_status = 'open'") == [(0,)],
            "every chain is closed",
        )
    finally:
        cutting.cancel()
    assert Counter(row[0] for row in harness.rows("select status from finishes")) == {"completed": 20, "continued": 10}
    assert harness.rows("select count(distinct job), count(*) from effects") == [(10, 10)]


async def requested_until_it_is_answered(harness: CallerHarness, job_type: Any, value: int) -> None:
    while True:
        try:
            await harness.caller.start_chain(job_type, value, id=f"{job_type.name}-{value}", attach=True)
        except StateUnavailableError:
            continue
        return


async def test_a_lease_is_kept_through_failing_renewals(harness: CallerHarness) -> None:
    """Two renewals of three fail, and the attempt goes on to its end: its lease lasts longer than that."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.number

    harness.handles(number, handler, lease=LeasePolicy(seconds=30.0, renew_every=0.2))
    state = FlakyState(harness.state, nth("renew", "before", *(place for place in range(1, 60) if place % 3)))
    chain = await harness.caller.start_chain(number, 1)
    async with harness.worker(state=state):
        await gate.next()
        await until(lambda: state.struck["renew", "before"] >= 6, "some renewals have failed")
        gate.open()
        assert await harness.caller.result(chain) == 1
    assert harness.log.of(AttemptAborted) == []
    assert harness.log.of(JobReaped) == []
    assert len(harness.log.of(AttemptStarted)) == 1


async def test_the_answer_to_a_reap_is_lost(harness: CallerHarness) -> None:
    """What it reaped runs at once, although nobody knows of it, and the claimer has gone to sleep for an hour."""

    async def handler(attempt: Attempt[int, int]) -> int:
        return attempt.number

    def reaped(operation: str, when: str) -> bool:
        if (operation, when) != ("reap", "after") or state.struck:
            return False
        return bool(harness.rows("select 1 from queuert.job where lease_expirations = 1"))

    # Its reaper looks as often as the shortest lease lasts; none is held for so short a time.
    harness.handles(text, echo)
    harness.handles(number, handler, lease=WATCHED)
    state = FlakyState(harness.state, reaped)
    left_behind = await harness.caller.start_chain(number, 1)
    dead = harness.state.async_store(max_connections=1)
    await dead.open()
    assert await dead.claim(ClaimRequest({"number": 3.0}, 1, "dead", new_token()))
    await dead.aclose()
    async with harness.worker(state=state, poll_interval=3600.0):
        assert await harness.caller.result(await harness.caller.start_chain(number, 2)) == 1
        assert await harness.caller.result(left_behind) == 2
    assert state.struck == {("reap", "after"): 1}
    assert harness.log.of(JobReaped) == []
