"""What goes wrong between a store and its server: typed errors, bounded waits, and no doubt left about commits."""

from __future__ import annotations

import asyncio
import select
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queuert import migrations
from queuert.errors import ConfigurationError, SchemaMissingError, StateError, StateUnavailableError
from queuert.jobs import JobStatus
from queuert.policies import RetryPolicy
from queuert.state import AsyncStore
from queuert.state.postgres import PostgresState, protocol
from queuert.state.types import ReapRequest, Renewal
from queuert.testing.conformance import Mode, Stores
from queuert.testing.conformance.builders import ask, claim_one, complete, eventually, job, read, started_and_claimed
from queuert.testing.fault_proxy import FaultProxy

ANSWER_TIMEOUT = 4.0
"""Seconds, where an answer is waited for without result; a busy machine may well need some for one that comes."""
PASSWORD = "hunter2-very-secret"


NO_ANSWER = r"^the server sent no answer within 4 s \(answer_timeout\): it cannot be reached, or is overloaded, or"


@pytest.fixture
def proxy(dsn: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(dsn) as proxy:
        yield proxy


async def opened(state: PostgresState, proxy: FaultProxy, mode: Mode) -> AsyncIterator[AsyncStore]:
    stores = Stores(state, mode)
    yield await stores.open(max_connections=2)
    proxy.heal()  # what is still on its way to the server arrives, and closing does not wait for it
    await stores.aclose()


@pytest.fixture
async def store(dsn: str, proxy: FaultProxy, mode: Mode) -> AsyncIterator[AsyncStore]:
    """A store whose connections go through the proxy."""
    async for store in opened(PostgresState(proxy.address_in(dsn)), proxy, mode):
        yield store


@pytest.fixture
async def hasty(dsn: str, proxy: FaultProxy, mode: Mode) -> AsyncIterator[AsyncStore]:
    """The same, which does not wait for long."""
    async for store in opened(PostgresState(proxy.address_in(dsn), answer_timeout=ANSWER_TIMEOUT), proxy, mode):
        yield store


def operations(store: AsyncStore) -> dict[str, Callable[[], Awaitable[object]]]:
    policy = {"work": RetryPolicy()}
    return {
        "start_jobs": lambda: store.start_jobs([job()]),
        "claim": lambda: store.claim(ask()),
        "reap": lambda: store.reap(ReapRequest(policy)),
        "next_due": lambda: store.next_due(["work"]),
        "counts": lambda: store.count_jobs(),
    }


# --- out of reach -----------------------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("name", ["start_jobs", "claim"])
async def test_server_is_gone_and_comes_back(store: AsyncStore, proxy: FaultProxy, name: str) -> None:
    call = operations(store)[name]
    await call()
    proxy.refuse()
    proxy.reset()
    with pytest.raises(StateUnavailableError):
        await call()
    proxy.heal()

    async def answers() -> bool:
        try:
            await call()
        except StateUnavailableError:
            return False
        return True

    assert await eventually(answers)


def at_rest_for_ever(monkeypatch: pytest.MonkeyPatch) -> set[psycopg.BaseConnection[object]]:
    """Whoever takes a connection takes one that has rested for long; those that were released from now on."""
    given_back: set[psycopg.BaseConnection[object]] = set()
    for kind in (protocol.AsyncPooledConnection, protocol.PooledConnection):
        monkeypatch.setattr(
            kind, "idle_since", property(lambda one: 0.0, lambda one, _: given_back.add(one)), raising=False
        )
    return given_back


def see_the_end(connections: set[psycopg.BaseConnection[object]]) -> None:
    """Wait until what the server, or the network, did has arrived: there is something to read."""
    for one in connections:
        assert select.select([one.fileno()], [], [], 20.0)[0]


@pytest.mark.parametrize("says_good_bye", [True, False], ids=["with good-bye", "without"])
async def test_sessions_that_ended_while_nobody_used_them_are_not_handed_out(
    store: AsyncStore, proxy: FaultProxy, dsn: str, monkeypatch: pytest.MonkeyPatch, says_good_bye: bool
) -> None:
    """Nobody's start is in doubt for a server that was restarted, or a firewall that forgot, an hour ago."""
    given_back = at_rest_for_ever(monkeypatch)
    first, second = await started_and_claimed(store, 2)
    async with store.transaction(first), store.transaction(second):
        pass  # Both of its connections have been used.
    if not says_good_bye:
        proxy.reset()
    else:
        with psycopg.connect(dsn, autocommit=True) as connection:
            sessions = (
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'queuert'"
            )
            connection.execute(f"{sessions} AND datname = current_database()")
    see_the_end(given_back)
    await asyncio.gather(*(store.start_jobs([job()]) for _ in range(3)))
    assert sum(one.count for one in await store.count_jobs()) == 5


async def test_an_outage_that_began_while_nobody_used_it_is_reported_at_once(
    dsn: str, proxy: FaultProxy, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the timeout for a connection has ended, in an hour here."""
    given_back = at_rest_for_ever(monkeypatch)
    stores = Stores(PostgresState(proxy.address_in(dsn), answer_timeout=3600.0), mode)
    store = await stores.open(max_connections=1)
    given_back.clear()  # It was opened by a connection that is closed by now.
    await store.start_jobs([job()])
    proxy.refuse()
    proxy.reset()
    see_the_end(given_back)
    with pytest.raises(StateUnavailableError, match="closed its connections and refuses new ones: connection failed"):
        await store.start_jobs([job()])
    proxy.heal()
    await store.start_jobs([job()])
    await stores.aclose()


async def test_who_gets_no_connection_is_reported_why(hasty: AsyncStore, proxy: FaultProxy) -> None:
    first, second = await started_and_claimed(hasty, 2)
    async with hasty.transaction(first), hasty.transaction(second):
        with pytest.raises(StateUnavailableError, match=r"^no connection within 4 s: none became free$"):
            await hasty.count_jobs()
    proxy.refuse()
    proxy.reset()
    # Both have failed: who goes on when the first has may yet be given the connection of the second.
    failures = await asyncio.gather(hasty.count_jobs(), hasty.count_jobs(), return_exceptions=True)
    assert all(isinstance(one, StateUnavailableError) for one in failures)  # Nothing is left of the two connections.
    with pytest.raises(StateUnavailableError, match="no connection within 4 s: tries to connect fail: conn"):
        await hasty.count_jobs()


@pytest.mark.fault
@pytest.mark.parametrize("name", ["start_jobs", "claim", "reap", "next_due", "counts"])
async def test_no_answer_ends_in_an_error(hasty: AsyncStore, proxy: FaultProxy, name: str) -> None:
    """A black hole, in which packets vanish while the connection stays up, is noticed by the watchdog."""
    call = operations(hasty)[name]
    await call()
    proxy.black_hole("to_client")
    with pytest.raises(StateUnavailableError, match=NO_ANSWER):
        await call()


@pytest.mark.fault
async def test_no_answer_inside_a_transaction(hasty: AsyncStore, proxy: FaultProxy) -> None:
    """Neither the beginning of a transaction nor its finish waits for ever."""
    [held] = await started_and_claimed(hasty)

    async def block() -> None:
        async with hasty.transaction(held) as transaction:
            proxy.black_hole("to_client")
            await transaction.finish(complete(held))

    with pytest.raises(StateUnavailableError, match=NO_ANSWER):
        await block()
    with pytest.raises(StateUnavailableError, match=NO_ANSWER):
        async with hasty.transaction(held):
            raise AssertionError("began without an answer")


async def test_nobody_listens(dsn: str, mode: Mode) -> None:
    stores = Stores(PostgresState(make_conninfo(dsn, port=1, host="127.0.0.1")), mode)
    store = stores.make()
    with pytest.raises(StateUnavailableError):
        await store.open()
    await store.aclose()
    await stores.aclose()


# --- what the server refuses ------------------------------------------------------------------------------------------


async def test_no_schema(bare_dsn: str, mode: Mode) -> None:
    """The error names the command that helps; after it the same store opens."""
    stores = Stores(PostgresState(bare_dsn), mode)
    store = stores.make()
    for _ in range(2):
        with pytest.raises(SchemaMissingError, match="queuert migrate up"):
            await store.open()
    migrations.upgrade(bare_dsn)
    await store.open()
    assert list(await store.count_jobs()) == []
    await store.aclose()
    await stores.aclose()


async def test_another_schema_is_named_in_the_advice(bare_dsn: str, mode: Mode) -> None:
    stores = Stores(PostgresState(bare_dsn, schema="billing"), mode)
    store = stores.make()
    with pytest.raises(SchemaMissingError, match=r"schema 'billing' here .*: run queuert migrate up --schema billing$"):
        await store.open()
    migrations.upgrade(bare_dsn, schema="billing")
    await store.open()
    await store.aclose()
    await stores.aclose()


async def test_schema_is_too_old(dsn: str, mode: Mode) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE queuert.alembic_version SET version_num = '0000'")
    stores = Stores(PostgresState(dsn), mode)
    store = stores.make()
    with pytest.raises(SchemaMissingError, match="queuert migrate up"):
        await store.open()
    await store.aclose()
    await stores.aclose()


async def test_schema_vanishes(store: AsyncStore, dsn: str) -> None:
    migrations.downgrade(dsn, revision="base")
    with pytest.raises(SchemaMissingError, match="queuert migrate up"):
        await store.claim(ask())


async def test_read_only_server(dsn: str, mode: Mode) -> None:
    """A primary that became a standby is out of reach, and the store looks for the new one by itself."""
    stores = Stores(PostgresState(dsn), mode)
    store = await stores.open(max_connections=1)
    await store.count_jobs()  # Its connection is there, to be ended with the others.
    name = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
    with psycopg.connect(dsn, autocommit=True) as connection:
        set_it = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
        connection.execute(set_it.format(name, sql.SQL("on")))
        sessions = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'queuert' AND datname = current_database()"
        )
        for (pid,) in connection.execute(sessions).fetchall():
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        failures = []

        async def refused_as_read_only() -> bool:
            try:
                await store.start_jobs([job()])
            except StateUnavailableError as error:
                failures.append(str(error))
            return "read-only" in failures[-1]

        assert await eventually(refused_as_read_only)
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(set_it.format(name, sql.SQL("off")))

    async def started() -> bool:
        try:
            return bool(await store.start_jobs([job()]))
        except StateUnavailableError:
            return False

    assert await eventually(started)
    await stores.aclose()


# --- doubt ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault
async def test_commit_was_done_and_nobody_said_so(store: AsyncStore, proxy: FaultProxy, dsn: str) -> None:
    """The block ends well: the finish was found in the store."""
    [held] = await started_and_claimed(store)
    proxy.lose_answer(b"COMMIT")
    async with store.transaction(held) as transaction:
        await transaction.finish(complete(held, "1"))
    assert proxy.fired.is_set()
    assert (await read(store, held.id)).status is JobStatus.COMPLETED


@pytest.mark.fault
async def test_commit_never_arrived(store: AsyncStore, proxy: FaultProxy) -> None:
    """The block is an error: nothing of it stands, and the lease can still finish the job."""
    [held] = await started_and_claimed(store)
    proxy.lose_request(b"COMMIT")
    with pytest.raises(StateUnavailableError):
        async with store.transaction(held) as transaction:
            await transaction.finish(complete(held))
    assert proxy.fired.is_set()
    assert (await read(store, held.id)).status is JobStatus.RUNNING
    assert (await store.finish([complete(held)]))[0].written


@pytest.mark.fault
async def test_commit_without_an_finish_in_doubt(store: AsyncStore, proxy: FaultProxy) -> None:
    """Whether the caller's own writes stand cannot be read from the queue: an error, though they may."""
    [held] = await started_and_claimed(store)
    proxy.lose_answer(b"COMMIT")
    with pytest.raises(StateUnavailableError):
        async with store.transaction(held):
            pass
    assert proxy.fired.is_set()
    assert await store.lost_reasons([held.lease]) == [None]


@pytest.mark.fault
async def test_rollback_on_a_broken_connection(store: AsyncStore, proxy: FaultProxy) -> None:
    """The caller's own exception passes, not the one of the rollback that could not be sent."""
    [held] = await started_and_claimed(store)

    async def block() -> None:
        async with store.transaction(held) as transaction:
            await transaction.finish(complete(held))
            proxy.reset()
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await block()

    async def holds_again() -> bool:
        try:
            return (await store.renew([Renewal(held.lease, 60)]))[0]
        except StateUnavailableError:
            return False

    assert await eventually(holds_again)


@pytest.mark.fault
@pytest.mark.parametrize("done", [True, False])
async def test_finish_is_params_again(store: AsyncStore, proxy: FaultProxy, done: bool) -> None:
    """After a finish whose answer was lost, or which was never received, asking again settles it."""
    [held] = await started_and_claimed(store)
    (proxy.lose_answer if done else proxy.lose_request)(b"jsonb_object_keys")
    with pytest.raises(StateUnavailableError):
        await store.finish([complete(held, "1")])
    assert proxy.fired.is_set()
    status = JobStatus.COMPLETED if done else JobStatus.RUNNING
    assert (await read(store, held.id)).status is status
    assert (await store.finish([complete(held, "1")]))[0].written
    assert (await read(store, held.id)).output == 1


@pytest.mark.fault
@pytest.mark.parametrize("done", [True, False])
async def test_claim_in_doubt_is_given_back(store: AsyncStore, proxy: FaultProxy, done: bool) -> None:
    [started] = await store.start_jobs([job()])
    request = ask()
    (proxy.lose_answer if done else proxy.lose_request)(b"UNION ALL")
    with pytest.raises(StateUnavailableError):
        await store.claim(request)
    assert proxy.fired.is_set()
    assert await store.release_claim(request) == (int(done), 0)
    assert (await claim_one(store)).id == started.id


# --- secrets ----------------------------------------------------------------------------------------------------------


def check_discreet(error: BaseException) -> None:
    assert PASSWORD not in "".join(traceback.format_exception(error))
    assert PASSWORD not in repr(error)


@pytest.mark.parametrize(
    "dsn",
    [f"postgresql://user:{PASSWORD}@127.0.0.1:1/nothing", f"host=127.0.0.1 port=1 user=someone password={PASSWORD}"],
)
async def test_passwords_are_not_repeated(dsn: str, mode: Mode) -> None:
    state = PostgresState(dsn, connect_timeout=2)
    stores = Stores(state, mode)
    store = stores.make()
    with pytest.raises(StateError) as caught:
        await store.open()
    check_discreet(caught.value)
    await stores.aclose()
    inside = [value for value in vars(state).values() if not isinstance(value, str)]
    assert all(PASSWORD not in repr(thing) for thing in (state, state.sync_store(), state.async_store(), *inside))
    for run in (migrations.upgrade, migrations.status, migrations.stamp):
        with pytest.raises(StateError) as caught:
            run(dsn)
        check_discreet(caught.value)


@pytest.mark.parametrize("dsn", [f"postgresql//user:{PASSWORD}@host/db", f"password='{PASSWORD}", f"{PASSWORD}=x"])
def test_passwords_in_nonsense_are_not_repeated(dsn: str) -> None:
    for make in (PostgresState, migrations.upgrade, migrations.status, migrations.stamp):
        with pytest.raises((ConfigurationError, StateError)) as caught:
            make(dsn)
        check_discreet(caught.value)
