"""Notifications that travel behind a start, on its connection and in a transaction of their own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import OperationalError, sql
from psycopg.conninfo import make_conninfo

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    Deduplicate,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    Processors,
    after,
    migrations,
)
from queuert.errors import JobIdConflictError
from queuert.notify import InProcessNotify, NotifyAdapter, Topic
from queuert.notify.adapter import piggyback_notification
from queuert.notify.postgres import PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.state.async_store import AsyncStore
from queuert.state.postgres import PostgresState, protocol
from queuert.state.postgres.settings import DatabaseKey
from queuert.state.types import NewJob
from queuert.testing.conformance import Mode, Stores
from queuert.testing.conformance.builders import started_and_claimed
from tests.conftest import StartPostgres
from tests.notify.conftest import NewPostgresParty
from tests.notify.support import WAIT, Gate, Heard, Wiretap, held, wiretap

JOBS = "queuert_jobs"
HOUR = 3600.0

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)


@pytest.fixture
def always_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No notification waits for others."""
    monkeypatch.setattr("queuert.notify.postgres.SHORTEST", 0.0)
    monkeypatch.setattr("queuert.notify.postgres.LONGEST", 0.0)


@pytest.fixture
def never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one notification all others wait."""
    monkeypatch.setattr("queuert.notify.postgres.SHORTEST", HOUR)
    monkeypatch.setattr("queuert.notify.postgres.LONGEST", HOUR)


def plain(id: str, **others: Any) -> NewJob:
    return replace(NewJob(id, "work", "1", id_chosen=True), **others)


async def went_along(store: AsyncStore, adapter: NotifyAdapter, *jobs: NewJob, connection: Any = None) -> bool:
    """Start these; whether their notification was sent by the store."""
    notification = piggyback_notification(adapter, Topic.JOBS, {job.type for job in jobs})
    assert notification is not None
    started = await store.start_jobs(jobs, connection=connection, notification=notification)
    assert [one.id for one in started] == [job.id for job in jobs]
    return notification.arrived


def heard_so_far(tap: Wiretap, last: str = "last") -> list[str]:
    """What was notified before now."""
    tap.notify(JOBS, last)
    return tap.texts_until(last)


def kept_from_sending(adapter: NotifyAdapter, dsn: str) -> Gate:
    """The adapter's thread stands still until the gate is opened. It has sent nothing that others would wait for."""
    gate, listens = Gate(), Heard()
    adapter.subscribe(Topic.LEASES, gate)
    adapter.subscribe(Topic.LEASES, listens)
    listens.wait_for_wildcard()
    with wiretap(dsn) as tap:
        tap.notify("queuert_leases", "wait")
    assert gate.entered.wait(WAIT)
    return gate


# --- along ------------------------------------------------------------------------------------------------------------


async def test_after_a_silence_a_start_takes_its_notification_along(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    with wiretap(dsn, JOBS) as tap:
        assert await went_along(store, party.adapter, plain("a"))
        assert heard_so_far(tap) == ["work"]


@pytest.mark.usefixtures("always_silent")
async def test_so_do_several_that_are_one_statement(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    with wiretap(dsn, JOBS) as tap:
        for number in range(5):
            assert await went_along(store, party.adapter, plain(f"a{number}"), plain(f"b{number}"))
        assert heard_so_far(tap) == ["work"] * 5


async def test_a_type_of_any_name_is_announced(dsn: str, stores: Stores, new_postgres_party: NewPostgresParty) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    heard, _ = new_postgres_party(dsn).listen(Topic.JOBS)
    name = "\u65e5\u672c 100% $1 '"
    assert await went_along(store, party.adapter, plain("a", type=name))
    heard.wait_for(name)


def test_a_client_is_heard_though_its_listener_stands_still(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client, wiretap(dsn, JOBS) as tap:
        gate = kept_from_sending(client.notify, dsn)
        client.start_chain(work, 1)
        assert heard_so_far(tap) == ["work"]
        gate.open()


def test_a_client_is_heard_though_its_listener_cannot_connect(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("no")

    monkeypatch.setattr("queuert.notify.postgres.Wire.connect", refuse)
    with Client(PostgresState(dsn), JOB_TYPES) as client, wiretap(dsn, JOBS) as tap:
        client.start_chain(work, 1)
        assert heard_so_far(tap) == ["work"]


async def test_a_worker_is_woken_though_the_listener_of_the_client_stands_still(dsn: str) -> None:
    processors, run = Processors(JOB_TYPES), asyncio.Event()

    @processors.handles(work)
    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        run.set()
        return attempt.input

    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES) as workers,
        AsyncClient(PostgresState(dsn), JOB_TYPES) as ours,
    ):
        gate = await asyncio.to_thread(kept_from_sending, ours.notify, dsn)
        async with InProcessWorker(workers, processors, poll_interval=HOUR):
            await ours.start_chain(work, 1)
            await asyncio.wait_for(run.wait(), WAIT)
        gate.open()


# --- one upon the other -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_silent", "unhurried_close")
def test_starts_one_upon_the_other_are_reported_together(dsn: str) -> None:
    with wiretap(dsn, JOBS) as tap:
        with Client(PostgresState(dsn), JOB_TYPES) as client:
            for number in range(50):
                client.start_chain(work, number)
            assert heard_so_far(tap) == ["work"]
        # Closed: what had waited was sent at once.
        assert heard_so_far(tap, "very last") == ["work"]


@pytest.mark.usefixtures("always_silent")
async def test_a_start_leaves_its_notification_to_those_that_wait_to_be_sent(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    gate = held(party)
    party.publish(Topic.JOBS, "waits")
    assert not await went_along(store, party.adapter, plain("a"))
    gate.open()


@pytest.mark.usefixtures("never_silent")
async def test_what_went_along_is_one_of_those_that_others_wait_for(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    assert await went_along(store, party.adapter, plain("a"))
    party.publish(Topic.JOBS, "waits")
    with wiretap(dsn, JOBS) as tap:
        assert not await went_along(store, party.adapter, plain("b"))
        assert heard_so_far(tap) == []


# --- the ordinary way -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("always_silent")
async def test_what_is_more_than_a_plain_statement_is_reported_afterwards(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    assert await went_along(store, party.adapter, plain("a"))
    for job in (
        plain("later", run_at=after(hours=1)),
        plain("keyed", deduplication=Deduplicate("key")),
        plain("waits", blockers=("a",)),
        plain("attached", attach=True),
        plain("found", attributes={"user": "17"}),
    ):
        assert not await went_along(store, party.adapter, job)


@pytest.mark.usefixtures("always_silent")
@pytest.mark.parametrize("threshold", [None, 5])
async def test_where_statements_are_not_prepared_at_once_it_is_reported_afterwards(
    dsn: str, mode: Mode, threshold: int | None, new_postgres_party: NewPostgresParty
) -> None:
    party, stores = new_postgres_party(dsn), Stores(PostgresState(dsn, prepare_threshold=threshold), mode)
    try:
        assert not await went_along(await stores.open(), party.adapter, plain("a"))
    finally:
        await stores.aclose()


@pytest.mark.usefixtures("always_silent")
async def test_on_a_connection_of_the_callers_it_is_reported_in_his_transaction(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    async with await psycopg.AsyncConnection.connect(dsn) as callers:
        if stores.mode is Mode.ASYNC:
            assert not await went_along(store, party.adapter, plain("a"), connection=callers)
    with psycopg.connect(dsn) as callers_own:
        if stores.mode is Mode.SYNC:
            assert not await went_along(store, party.adapter, plain("b"), connection=callers_own)


@pytest.mark.usefixtures("always_silent")
def test_it_goes_along_to_its_own_place_only(dsn: str, new_postgres_party: NewPostgresParty) -> None:
    adapter = new_postgres_party(dsn).adapter
    notification = piggyback_notification(adapter, Topic.JOBS, {"work"})
    assert notification is not None
    elsewhere = make_conninfo(dsn, dbname="elsewhere")
    for place in (DatabaseKey(dsn, "other"), DatabaseKey(elsewhere, "queuert"), None):
        assert notification.depart(place) is None
    assert notification.depart(DatabaseKey(dsn, "queuert")) == (JOBS, "work")
    assert not notification.arrived


def test_an_adapter_that_is_not_open_sends_nothing(dsn: str) -> None:
    adapter = PostgresNotify(dsn)
    notification = adapter.piggyback_notification(Topic.JOBS, {"work"})
    assert notification.depart(DatabaseKey(dsn, "queuert")) is None


def test_other_adapters_leave_nothing_to_the_store() -> None:
    for adapter in (InProcessNotify(), RedisNotify("redis://localhost")):
        assert piggyback_notification(adapter, Topic.JOBS, {"work"}) is None


def test_a_listener_at_another_address_is_reported_as_ever(dsn: str) -> None:
    """As where jobs go through a pooler."""
    state = PostgresState(dsn, listen_dsn=make_conninfo(dsn, application_name="direct"))
    with Client(state, JOB_TYPES) as client, wiretap(dsn, JOBS) as tap:
        gate = kept_from_sending(client.notify, dsn)
        client.start_chain(work, 1)
        assert heard_so_far(tap) == []
        gate.open()
        assert [notice.payload for notice in tap.connection.notifies(timeout=WAIT, stop_after=1)] == ["work"]


# --- faults -----------------------------------------------------------------------------------------------------------


async def run(connection: Any, statement: sql.Composable | str) -> None:
    """Run a statement on a connection sync or async."""
    cursor = connection.execute(statement)
    if inspect.isawaitable(cursor):
        await cursor


async def statements(store: AsyncStore, *texts: str) -> Any:
    """The store's own connection, after these statements."""
    [job] = await started_and_claimed(store, type="other")
    async with store.transaction(job) as transaction:
        for text in texts:
            await run(transaction.connection, text)
        return transaction.connection


@pytest.mark.usefixtures("always_silent")
async def test_a_deallocation_is_made_good(dsn: str, stores: Stores, new_postgres_party: NewPostgresParty) -> None:
    store, party = await stores.open(max_connections=1), new_postgres_party(dsn)
    assert await went_along(store, party.adapter, plain("a"))
    connection = await statements(store, "DEALLOCATE ALL")
    # Of the two the second is found missing only when the first is there.
    reported = [await went_along(store, party.adapter, plain(f"b{number}")) for number in range(3)]
    assert reported[-1]
    # They stand though we take them for gone.
    connection.prepared.clear()
    reported = [await went_along(store, party.adapter, plain(f"c{number}")) for number in range(3)]
    assert reported[-1]


@pytest.mark.usefixtures("always_silent")
async def test_without_its_own_statement_the_start_stands(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty
) -> None:
    store, party = await stores.open(max_connections=1), new_postgres_party(dsn)
    assert await went_along(store, party.adapter, plain("a"))
    connection = await statements(store)
    [name] = [one.decode() for one in connection.prepared if b"notify_after_start" in one]
    await statements(store, f"DEALLOCATE {name}")
    assert not await went_along(store, party.adapter, plain("b"))
    assert await went_along(store, party.adapter, plain("c"))


async def test_a_start_that_is_refused_says_so(dsn: str, stores: Stores, new_postgres_party: NewPostgresParty) -> None:
    store, party = await stores.open(), new_postgres_party(dsn)
    await store.start_jobs([plain("a")])
    with pytest.raises(JobIdConflictError):
        await went_along(store, party.adapter, plain("a"))


async def test_a_connection_lost_after_the_answer_loses_the_notification_alone(
    dsn: str, stores: Stores, new_postgres_party: NewPostgresParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, party = await stores.open(max_connections=1), new_postgres_party(dsn)
    received, requested = protocol._received, []

    def lost(pgconn: Any) -> Any:
        requested.append(pgconn)
        if len(requested) == 2:
            raise OperationalError("lost")
        return (yield from received(pgconn))

    monkeypatch.setattr(protocol, "_received", lost)
    assert not await went_along(store, party.adapter, plain("a"))
    await store.start_jobs([plain("b")])
    [first, second] = await store.get_chains(["a", "b"])
    assert first is not None
    assert second is not None


async def test_a_start_that_is_cancelled_leaves_no_connection_in_its_middle(
    dsn: str, new_postgres_party: NewPostgresParty
) -> None:
    stores, party = Stores(PostgresState(dsn), Mode.ASYNC), new_postgres_party(dsn)
    try:
        store = await stores.open(max_connections=1)
        with psycopg.connect(dsn) as holder:
            holder.execute("LOCK TABLE queuert.job")
            starting = asyncio.create_task(went_along(store, party.adapter, plain("a")))
            while not holder.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall():  # noqa: ASYNC110
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert (await store.get_chains(["a"])) == [None]
        assert [one.id for one in await store.start_jobs([plain("b")])] == ["b"]
    finally:
        await stores.aclose()


def test_who_waits_for_the_lock_of_all_that_notify_sends_later(private_postgres: StartPostgres) -> None:
    """A commit that waits for a standby holds it. The start does not wait for that, nor does it fail."""
    settings: dict[str, str | int] = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    dsn = private_postgres(durable=False, settings=settings).dsn()
    migrations.upgrade(dsn)
    with (
        closing(psycopg.connect(dsn, autocommit=True)) as holder,
        Client(PostgresState(dsn), JOB_TYPES) as client,
        wiretap(dsn, JOBS) as tap,
    ):
        thread = threading.Thread(target=_notify_for_standbys, args=[holder])
        thread.start()
        try:
            while not tap.connection.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchall():
                pass
            chain = client.start_chain(work, 1)
            assert client.get_chain(chain.id).id == chain.id
        finally:
            holder.cancel_safe()
            thread.join(WAIT)
        assert [notice.payload for notice in tap.connection.notifies(timeout=WAIT, stop_after=2)] == ["holds", "work"]


def _notify_for_standbys(holder: psycopg.Connection[Any]) -> None:
    # Cancelled, it is committed here, and says so by a warning.
    with holder.transaction():
        holder.execute("SET LOCAL synchronous_commit = on")
        holder.execute("CREATE TABLE written ()")
        holder.execute("NOTIFY queuert_jobs, 'holds'")
