"""What jobs cost in statements, round trips, commits, bytes of the log and calls of Python: counted, not timed.

The bounds are in one table. Each leaves room for what depends on the moment, such as how many finishes one statement
writes, and none for a statement more a job. Lower them with what they bound.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import psycopg

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
    migrations,
)
from queuert.notify.adapter import NotifyAdapter
from queuert.notify.in_process import InProcessNotify
from queuert.observability.adapter import ObservabilityAdapter
from queuert.observability.events import AttemptCompleted, Event
from tests.conftest import StartPostgres
from tests.support.waiting import WAIT
from tests.worker.wire import Wire

noop = JobType("noop", input=int, output=int)
write = JobType("write", input=int, output=int)
poison = JobType("poison", input=int, output=int)
fifth = JobType("fifth", input=int, output=int)
fourth = JobType("fourth", input=int, continues_with=fifth)
third = JobType("third", input=int, continues_with=fourth)
second = JobType("second", input=int, continues_with=third)
first = JobType("first", input=int, continues_with=second)
JOB_TYPES = JobTypes(noop, write, poison, first, second, third, fourth, fifth)


@dataclass(frozen=True)
class Bound:
    """At most so much a job (or a call); ``measured`` is what it was when the bound was set."""

    most: float
    measured: float


BOUNDS = {
    "start one: round trips": Bound(1.0, 1.0),
    "start one: round trips, its notification's among them": Bound(2.1, 1.6),
    "start 100: round trips": Bound(1.0, 1.0),
    "start 100: statements": Bound(1.0, 1.0),
    # A mark behind each of five parts, from which on the server bounds its wait for the next, and the end of the
    # pipeline: the client waits for none of them but the last.
    "start 1,000: round trips": Bound(6.0, 6.0),
    # BEGIN, the bounds of the transaction, a part of 50 and four of up to 250, COMMIT.
    "start 1,000: statements": Bound(8.0, 8.0),
    "start 1,000: WAL bytes": Bound(760, 682),
    "drain of 1,000: round trips": Bound(0.25, 0.035),
    "drain of 1,000: statements": Bound(0.25, 0.035),
    "drain of 1,000: commits": Bound(0.25, 0.025),
    "drain of 1,000: WAL bytes": Bound(1_300, 1_104),
    "complete(): round trips": Bound(4.3, 3.8),
    "complete(): statements": Bound(6.6, 6.0),
    "chains of five: round trips": Bound(0.25, 0.057),
    "drain of 2,000: calls of Python": Bound(74, 64.8),
    "drain of 1,000 beside as many failures: round trips": Bound(0.25, 0.029),
    "drain of 1,000 beside as many failures: WAL bytes": Bound(1_600, 1_259),
    "drain of 1,000 beside as many failures: calls of Python": Bound(120, 108),
}
"""The calls of one thousand are counted a call, everything else a job."""


def check(name: str, value: float) -> None:
    """The bound holds."""
    bound = BOUNDS[name]
    assert value <= bound.most, f"{name}: {value:.4g}, at most {bound.most:g} (it was {bound.measured:g})"


class Completions:
    """Hears when so many jobs of a type have been completed."""

    def __init__(self, jobs: int, job_type: str) -> None:
        self._left = jobs
        self._type = job_type
        self.all = asyncio.Event()

    def wants(self, kind: type[Event]) -> bool:
        return kind is AttemptCompleted

    def emit(self, event: Event) -> None:
        if isinstance(event, AttemptCompleted) and event.type == self._type:
            self._left -= 1
            if self._left == 0:
                self.all.set()


def _processors() -> Processors:
    processors = Processors(JOB_TYPES)

    @processors.handles(noop)
    async def run(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    @processors.handles(write)
    async def run_write(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effect values (%s)", [attempt.input])
            return tx.finish(attempt.input)

    # What has failed does not come back while the others are counted, however long they take.
    @processors.handles(poison, retry=RetryPolicy(initial_delay=3600.0, max_delay=3600.0))
    async def fail(attempt: Attempt[int, int]) -> Outcome[int]:
        raise ValueError("poison")

    @processors.handles(first)
    async def run_first(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(second, attempt.input)

    @processors.handles(second)
    async def run_second(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(third, attempt.input)

    @processors.handles(third)
    async def run_third(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(fourth, attempt.input)

    @processors.handles(fourth)
    async def run_fourth(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(fifth, attempt.input)

    @processors.handles(fifth)
    async def run_fifth(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    return processors


def start(dsn: str, job_type: JobType[int, Any], jobs: int) -> None:
    """So many chains, in one call."""
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        client.start_chains([NewChain(job_type, number) for number in range(jobs)])


async def drain(
    dsn: str, jobs: int, *, concurrency: int = 100, last: str = "noop", begin: Callable[[], None] = lambda: None
) -> None:
    """Run a worker from its start until so many jobs of the last type have been completed."""
    completions = Completions(jobs, last)
    observability: list[ObservabilityAdapter] = [completions]
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, observability=observability) as client:
        worker = InProcessWorker(client, _processors(), concurrency=concurrency)
        begin()
        async with worker:
            await asyncio.wait_for(completions.all.wait(), WAIT)


def _alone(dsn: str, notify: NotifyAdapter | None = None) -> Client:
    """A client of one connection: a second one that the pool makes late would be warmed up while it is counted."""
    return Client(PostgresState(dsn), JOB_TYPES, notify=notify, max_connections=1)


def warmed_up(client: Client) -> None:
    """The statement is prepared by and by, which takes a round trip too."""
    for number in range(20):
        client.start_chain(noop, number)


def test_starting_takes_few_round_trips(dsn: str) -> None:
    with Wire(dsn) as wire, _alone(wire.dsn, notify=InProcessNotify()) as client:
        warmed_up(client)
        before = wire.round_trips
        for number in range(50):
            client.start_chain(noop, number)
        check("start one: round trips", (wire.round_trips - before) / 50)
        for count in (100, 1_000):
            before, said = wire.round_trips, wire.statements
            client.start_chains([NewChain(noop, number) for number in range(count)])
            check(f"start {count:,}: round trips", wire.round_trips - before)
            check(f"start {count:,}: statements", wire.statements - said)


def test_a_notification_is_one_more_at_most(dsn: str) -> None:
    with Wire(dsn) as wire:
        with _alone(wire.dsn) as client:
            warmed_up(client)
            before = wire.round_trips
            for number in range(50):
                client.start_chain(noop, number)
        # Closed: what was still to be told has been.
        check("start one: round trips, its notification's among them", (wire.round_trips - before) / 50)


async def test_a_drain_takes_few_statements(dsn: str) -> None:
    start(dsn, noop, 1_000)
    with Wire(dsn) as wire:
        await drain(wire.dsn, 1_000)
        check("drain of 1,000: round trips", wire.round_trips / 1_000)
        check("drain of 1,000: statements", wire.statements / 1_000)


async def test_failures_take_no_more_statements_than_completions(dsn: str) -> None:
    """They are there first, and written in batches with what completes."""
    start(dsn, poison, 1_000)
    start(dsn, noop, 1_000)
    with Wire(dsn) as wire:
        await drain(wire.dsn, 1_000)
        check("drain of 1,000 beside as many failures: round trips", wire.round_trips / 2_000)


async def test_completing_with_ones_own_writes_takes_few_round_trips(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table effect (value bigint)")
    start(dsn, write, 200)
    with Wire(dsn) as wire:
        await drain(wire.dsn, 200, concurrency=10, last="write")
        check("complete(): round trips", wire.round_trips / 200)
        check("complete(): statements", wire.statements / 200)


async def test_chains_of_five_are_as_cheap_as_jobs(dsn: str) -> None:
    start(dsn, first, 200)
    with Wire(dsn) as wire:
        await drain(wire.dsn, 200, last="fifth")
        check("chains of five: round trips", wire.round_trips / 1_000)


async def test_a_drain_writes_little_to_the_log_and_commits_rarely(private_postgres: StartPostgres) -> None:
    settings: dict[str, str | int] = {"autovacuum": "off", "full_page_writes": "off", "bgwriter_lru_maxpages": 0}
    dsn = private_postgres(durable=False, settings=settings).dsn()
    migrations.upgrade(dsn)
    start(dsn, noop, 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = _log(connection)
        start(dsn, noop, 1_000)
        started, commits = _log(connection), _commits(connection)
        await drain(dsn, 1_001)
        drained, committed = _log(connection), _commits(connection)
        start(dsn, poison, 1_000)
        start(dsn, noop, 1_000)
        again = _log(connection)
        await drain(dsn, 1_000)
        failed = _log(connection)
    check("start 1,000: WAL bytes", (started - before) / 1_000)
    check("drain of 1,000 beside as many failures: WAL bytes", (failed - again) / 2_000)
    check("drain of 1,000: WAL bytes", (drained - started) / 1_000)
    check("drain of 1,000: commits", (committed - commits) / 1_000)


def _log(connection: psycopg.Connection[Any]) -> float:
    """Bytes that were ever written to the log."""
    row = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").fetchone()
    assert row is not None
    return float(row[0])


def _commits(connection: psycopg.Connection[Any]) -> int:
    """Transactions that wrote, and so took a number."""
    row = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


async def test_a_job_takes_few_calls_of_python(dsn: str) -> None:
    """Of the thread that runs the event loop: what the worker's processor time hangs on."""
    start(dsn, noop, 2_000)
    check("drain of 2,000: calls of Python", await _calls(dsn, 2_000) / 2_000)


async def test_a_failure_takes_few_calls_of_python(dsn: str) -> None:
    """A flood of them must not cost the others their time. Nothing is logged here."""
    start(dsn, poison, 1_000)
    start(dsn, noop, 1_000)
    check("drain of 1,000 beside as many failures: calls of Python", await _calls(dsn, 1_000) / 2_000)


async def _calls(dsn: str, jobs: int) -> int:
    calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += 1

    gc.disable()
    try:
        await drain(dsn, jobs, begin=lambda: sys.setprofile(profile))
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
