"""Callers whose own transactions are stricter than READ COMMITTED, and a role with such a default."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, IsolationLevel

from queuert import (
    AsyncChain,
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
)
from queuert.errors import StateUnavailableError
from queuert.jobs import JobStatus
from queuert.observability.events import WorkerStarted, WorkerStopped
from queuert.policies import LeasePolicy
from queuert.state.paging import JobFilter, PageRequest
from queuert.testing.conformance import Mode, Stores
from queuert.testing.conformance.builders import ask, complete, fail, go_on, job, read, start, wait
from queuert.testing.events import EventLog
from tests.faults.application import JOB_TYPES, Plan, patient, quick
from tests.faults.harness import FaultHarness
from tests.faults.roles import Role
from tests.redis.test_identifiers import Tour
from tests.security.test_conformance_as_roles import Touring
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault

STRICT = pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])

UNRENEWED = LeasePolicy(seconds=120.0, renew_every=30.0)
"""Renewals are rare during a test: one writes to the job's row, which is such a change as well."""

COUNT = "select count(*) from orders"
ORDER = "insert into orders default values"


@pytest.fixture(autouse=True)
def _orders(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table orders (id int generated always as identity)")


async def started(
    harness: FaultHarness, blocker: AsyncChain[Any], caller: AsyncConnection[Any]
) -> AsyncChain[int] | None:
    """Start a chain that waits for another, together with an order; None if that one has changed meanwhile."""
    try:
        await caller.execute(ORDER)
        chain = await harness.client.start_chain(quick, 1, id="waits", blockers=[blocker], connection=caller)
        await caller.commit()
    except StateUnavailableError:
        return None
    return chain


@STRICT
async def test_a_blocker_that_changed_since(harness: FaultHarness, level: IsolationLevel) -> None:
    """A start with a blocker that changed since the snapshot is rejected with a retryable error, and writes nothing."""
    blocker = await harness.client.start_chain(patient, Plan(before=[1]))
    async with await AsyncConnection.connect(harness.dsn) as caller:
        await caller.set_isolation_level(level)
        await caller.execute(COUNT)
        async with harness.worker(lease=UNRENEWED):
            await harness.step(blocker.id, "began")
            await caller.execute(ORDER)
            with pytest.raises(StateUnavailableError, match="could not serialize"):
                await harness.client.start_chain(quick, 1, id="waits", blockers=[blocker], connection=caller)
            await caller.rollback()

            # The worker renews its leases when it has begun to listen, which may be now: a caller repeats.
            async with asyncio.timeout(WAIT):
                while (chain := await started(harness, blocker, caller)) is None:
                    await caller.rollback()
            harness.witness.open("before:1")
            assert await chain.result(WAIT) == 1
    assert harness.witness.one(COUNT) == 1


def take_turns(client: Client, first: Connection[Any], second: Connection[Any]) -> list[Exception]:
    """Let two callers count orders, start a chain and add an order each, overlapping; return the second one's
    errors."""
    for caller in (first, second):
        caller.isolation_level = IsolationLevel.SERIALIZABLE
        caller.execute(COUNT)
    client.start_chain(quick, 1, id="first", connection=first)
    first.execute(ORDER)
    errors: list[Exception] = []
    try:
        client.start_chain(quick, 2, id="second", connection=second)
        second.execute(ORDER)
        first.commit()
        second.commit()
    except (StateUnavailableError, psycopg.errors.SerializationFailure) as error:
        errors.append(error)
        second.rollback()
    return errors


def test_two_that_read_what_the_other_writes(dsn: str) -> None:
    """One of them fails at its commit, and its chain is rolled back with its order: a caller that repeats has both
    once."""
    with (
        Client(PostgresState(dsn), JOB_TYPES) as client,
        psycopg.connect(dsn) as first,
        psycopg.connect(dsn) as second,
    ):
        assert len(take_turns(client, first, second)) == 1
        assert [chain.id for chain in client.list_chains().items] == ["first"]
        client.start_chain(quick, 2, id="second", connection=second)
        second.execute(ORDER)
        second.commit()
        assert {chain.id for chain in client.list_chains().items} == {"first", "second"}
        assert first.execute(COUNT).fetchone() == (2,)


@STRICT
def test_an_event_that_is_sent_to_a_job(dsn: str, level: IsolationLevel) -> None:
    """Whoever ends an attempt with an older snapshot cannot write the job, and so does not overlook the event."""
    with Client(PostgresState(dsn), JOB_TYPES) as client, psycopg.connect(dsn) as finish:
        chain = client.start_chain(quick, 1)
        finish.isolation_level = level
        finish.execute(COUNT)
        assert client.send_event(chain, "approved")
        with pytest.raises(psycopg.errors.SerializationFailure):
            finish.execute("select from queuert.job where id = %s for no key update", [chain.id])


@pytest.mark.parametrize("level", ["'repeatable read'", "serializable"])
async def test_a_role_that_is_so_by_default(harness: FaultHarness, role: Role, level: Any) -> None:
    """Claims and finishes of several workers then conflict, and are repeated: slower, but as correct as ever."""
    role.set("default_transaction_isolation", level)
    state, logs = PostgresState(role.address), [EventLog() for _ in range(2)]
    lease = LeasePolicy(seconds=10.0)  # Renewals conflict as well.
    async with (
        AsyncClient(state, JOB_TYPES) as client,
        harness.worker(state=state, log=logs[0], name="one", lease=lease, concurrency=3, poll_interval=0.1),
        harness.worker(state=state, log=logs[1], name="two", lease=lease, concurrency=3, poll_interval=0.1),
    ):
        chains = await client.start_chains([NewChain(quick, number) for number in range(30)])
        assert [await chain.result(2 * WAIT) for chain in chains] == list(range(30))
    for log in logs:
        assert len(log.of(WorkerStarted)) == len(log.of(WorkerStopped, abandoned=0)) == 1


@pytest.mark.quick
@pytest.mark.parametrize("level", ["'repeatable read'", "'serializable'", "'read committed'"])
async def test_transactions_of_handlers_are_as_the_role_has_them(role: Role, level: Any) -> None:
    """Statements of ours have their own level; those of a handler, beside its completion, are not weakened."""
    role.set("default_transaction_isolation", level)
    show = JobType("show", input=bool, output=str)
    processors = Processors(JobTypes(show))

    @processors.handles(show)
    async def read_level(attempt: Attempt[bool, str]) -> Outcome[str]:
        async with attempt.complete() as tx:
            cursor = await tx.connection.execute("show transaction_isolation")
            [found] = await cursor.fetchone()
            return tx.finish(found)

    async with AsyncClient(PostgresState(role.address), JobTypes(show)) as client, InProcessWorker(client, processors):
        for _ in range(2):
            chain = await client.start_chain(show, True)
            assert await chain.result(WAIT) == level.strip("'")
        store = await client._open_store()
        assert await store._fetch(b"show transaction_isolation") == [("read committed",)]  # type: ignore[attr-defined]


GUARD = """
create function not_strict() returns trigger language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a write to % in a transaction that is %', tg_relid::regclass,
            current_setting('transaction_isolation');
    end if;
    return null;
end $$;
select 'create trigger not_strict before insert or update or delete on ' || oid::regclass
    || ' execute function not_strict()'
from pg_class where relnamespace = 'queuert'::regnamespace and relkind in ('r', 'p') and not relispartition
"""


@pytest.mark.quick
@pytest.mark.parametrize("mode", list(Mode), ids=str)
async def test_writes_of_ours_have_their_own_level(dsn: str, role: Role, mode: Mode) -> None:
    """Whichever operation it is, and whatever the role has by default."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(GUARD)
        while cursor.nextset():
            pass
        for [trigger] in cursor.fetchall():
            connection.execute(trigger)
    role.set("default_transaction_isolation", "serializable")
    with pytest.raises(psycopg.errors.RaiseException), psycopg.connect(role.address) as connection:
        connection.execute("delete from queuert.job")
    stores = Stores(PostgresState(role.address), mode)
    try:
        store = await stores.open()
        [blocker] = await start(store, job())
        [waits] = await start(store, job(blockers=[blocker]))
        [held] = await store.claim(ask())
        await store.finish([go_on(held, job("next"))])
        await store.finish([complete(one) for one in await store.claim(ask("next"))])
        assert (await read(store, waits)).status is JobStatus.READY
        [held] = await store.claim(ask())
        await store.finish([wait(held, job("child"))])
        await store.finish([fail(one) for one in await store.claim(ask("child"))])
        failed = await store.list_jobs(JobFilter(types=("child",)), PageRequest(9))
        await store.retry_chains([one.chain_id for one in failed])
        await store.cancel_chains([waits], reason="x")
        await store.delete_chains([waits], cascade=True)
    finally:
        await stores.aclose()
    if mode is Mode.SYNC:
        state = PostgresState(role.address)
        toured: Any = Touring(state._settings, state._statements, 2)
        toured.open()
        try:
            Tour(toured, "plain").go()
        finally:
            toured.close()
