"""Writes on callers' connections of asyncpg and psycopg2, and connections to another database."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import psycopg
import psycopg2
import psycopg2.extensions
import psycopg2.extras
import psycopg2.pool
import pytest
from psycopg.rows import dict_row
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from queuert import (
    AsyncClient,
    ChainStatus,
    Client,
    Deduplicate,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    PostgresState,
    after,
)
from queuert.errors import (
    BlockerReferenceError,
    ChainNotFoundError,
    JobIdConflictError,
    SchemaMissingError,
    StateUnavailableError,
    UnsupportedConnectionError,
)
from queuert.notify import encoding
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainStarted
from queuert.state.named_sections import read_sections
from queuert.state.postgres.external_connections import Database
from queuert.state.types import NewJob
from queuert.testing.databases import TemplateDatabases
from queuert.testing.events import EventLog
from tests.client import callers
from tests.support.waiting import WAIT


class Order(BaseModel):
    """Text that every layer of quoting has an opinion on."""

    text: str
    numbers: list[float]


ODD = Order(text='a "quoted" \\ 50% %(id)s $1 {x} été \n', numbers=[1.5, -2, 1e300])
work = JobType("work", input=Order, output=int)
JOB_TYPES = JobTypes(work)
ATTRIBUTES: dict[str, int | list[str]] = {"user": 17, "tags": ['a"b', "c\\d", "{e}"]}


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.fixture
async def async_client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@asynccontextmanager
async def connected(dsn: str, **options: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn, **options)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def psycopg2_connected(dsn: str, *, autocommit: bool = False, **options: Any) -> Iterator[Any]:
    with closing(psycopg2.connect(dsn, **options)) as connection:
        connection.autocommit = autocommit
        yield connection


def ids(dsn: str) -> set[str]:
    """The ids of all chains that are committed."""
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM queuert.job").fetchall()}


# --- every operation --------------------------------------------------------------------------------------------------


async def test_every_write_on_asyncpg(async_client: AsyncClient, dsn: str) -> None:
    """Each operation that takes ``connection=``, with values of every type, in one transaction."""
    client = async_client
    async with connected(dsn) as connection:
        async with connection.transaction():
            first = await client.start_chain(work, ODD, attributes=ATTRIBUTES, priority=3, connection=connection)
            many = await client.start_chains(
                [
                    NewChain(work, ODD, id="later", run_at=after(hours=1), limit_key="k", result_ttl=2.5),
                    NewChain(work, ODD, id="waits", blockers=[first]),
                    NewChain(work, ODD, deduplication=Deduplicate("key", scope="any", window=60)),
                ],
                connection=connection,
            )
            again = await client.start_chain(work, ODD, deduplication=Deduplicate("key"), connection=connection)
            assert (again.id, again.deduplicated) == (many[2].id, True)
            attached = await client.start_chain(work, ODD, id="later", attach=True, connection=connection)
            assert attached.deduplicated
            await client.trigger_job("later", connection=connection)
            await client.cancel_chain(many[2], connection=connection)
            await client.retry_chain(many[2], connection=connection)
            with pytest.raises(BlockerReferenceError):
                await client.delete_chain(first, connection=connection)
            assert await client.delete_chain("waits", cascade=False, connection=connection)
            assert ids(dsn) == set()
        assert len(ids(dsn)) == 3
        job = await client.get_job(first.id)
        assert (Order.model_validate(job.input), job.priority) == (ODD, 3)
        assert [one.id for one in await client.list_chains(attributes=ATTRIBUTES)] == [first.id]
        async with connection.transaction():
            await client.complete_chain(first, 5, connection=connection)
        assert (await client.get_chain(first.id)).status is ChainStatus.COMPLETED
        async with connection.transaction():
            assert await client.delete_chain(first, connection=connection)
        assert (await client.list_chains(attributes=ATTRIBUTES)).items == ()


def test_every_write_on_psycopg2(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn) as connection:
        first = client.start_chain(work, ODD, attributes=ATTRIBUTES, priority=-3, connection=connection)
        many = client.start_chains(
            [
                NewChain(work, ODD, id="later", run_at=after(hours=1), limit_key="k", result_ttl=2.5),
                NewChain(work, ODD, id="waits", blockers=[first]),
                NewChain(work, ODD, deduplication=Deduplicate("key", scope="any", window=60)),
            ],
            connection=connection,
        )
        again = client.start_chain(work, ODD, deduplication=Deduplicate("key"), connection=connection)
        assert (again.id, again.deduplicated) == (many[2].id, True)
        assert client.start_chain(work, ODD, id="later", attach=True, connection=connection).deduplicated
        client.trigger_job("later", connection=connection)
        client.cancel_chain(many[2], connection=connection)
        client.retry_chain(many[2], connection=connection)
        with pytest.raises(BlockerReferenceError):
            client.delete_chain(first, connection=connection)
        assert client.delete_chain("waits", connection=connection)
        assert ids(dsn) == set()
        connection.commit()
        assert len(ids(dsn)) == 3
        job = client.get_job(first.id)
        assert (Order.model_validate(job.input), job.priority) == (ODD, -3)
        assert [one.id for one in client.list_chains(attributes=ATTRIBUTES)] == [first.id]
        client.complete_chain(first, 5, connection=connection)
        connection.commit()
        assert client.get_chain(first.id).status is ChainStatus.COMPLETED
        assert client.delete_chain(first, connection=connection)
        connection.commit()
        assert client.list_chains(attributes=ATTRIBUTES).items == ()


def expect_uncommitted(chains: list[str], jobs: list[Any], pages: list[Any]) -> None:
    """What all reads in a transaction return that has started the chains ``a`` and ``b``, which waits for ``a``."""
    assert chains == ["a", "b"]
    assert [(job.id, job.status) for job in jobs] == [("a", JobStatus.READY), ("b", JobStatus.BLOCKED)]
    assert all(job.created_at.tzinfo is UTC for job in jobs)
    assert Order.model_validate(jobs[0].input) == ODD
    assert [[one.id for one in page] for page in pages] == [["a"], ["b", "a"], ["b", "a"], ["b"], ["b"]]


async def every_read(client: AsyncClient, connection: Any) -> None:
    """Start chains, and read them in the transaction of the connection."""
    await client.start_chain(work, ODD, id="a", attributes=ATTRIBUTES, connection=connection)
    await client.start_chain(work, ODD, id="b", blockers=["a"], connection=connection)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    chains = await client.get_chains(["a", "b"], connection=connection)
    assert (await client.get_chain("a", work, connection=connection)).input == ODD
    assert (await client.get_job("b", connection=connection)).open_blockers == 1
    expect_uncommitted(
        [chain.id for chain in chains],
        await client.get_jobs(["a", "b", "a"], connection=connection),
        [
            await client.list_chains(attributes=ATTRIBUTES, connection=connection),
            await client.list_chains(job_types=[work], since=yesterday, connection=connection),
            await client.list_jobs(statuses=["ready", "blocked"], connection=connection),
            await client.list_chain_jobs("b", connection=connection),
            await client.list_dependents("a", connection=connection),
        ],
    )
    assert [one.chain_id for one in await client.get_blockers("b", connection=connection)] == ["a"]
    assert (await client.list_jobs()).items == ()


def every_read_sync(client: Client, connection: Any) -> None:
    """``every_read`` of a sync client."""
    client.start_chain(work, ODD, id="a", attributes=ATTRIBUTES, connection=connection)
    client.start_chain(work, ODD, id="b", blockers=["a"], connection=connection)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expect_uncommitted(
        [chain.id for chain in client.get_chains(["a", "b"], connection=connection)],
        client.get_jobs(["a", "b", "a"], connection=connection),
        [
            client.list_chains(attributes=ATTRIBUTES, connection=connection),
            client.list_chains(job_types=[work], since=yesterday, connection=connection),
            client.list_jobs(statuses=["ready", "blocked"], connection=connection),
            client.list_chain_jobs("b", connection=connection),
            client.list_dependents("a", connection=connection),
        ],
    )
    assert [one.chain_id for one in client.get_blockers("b", connection=connection)] == ["a"]
    assert client.list_jobs().items == ()


async def test_every_read_on_asyncpg(async_client: AsyncClient, dsn: str) -> None:
    async with connected(dsn) as connection, connection.transaction():
        await every_read(async_client, connection)


def test_every_read_on_psycopg2(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn) as connection:
        every_read_sync(client, connection)


async def test_every_read_on_psycopg(async_client: AsyncClient, client: Client, dsn: str) -> None:
    """Of a session in another time zone, whose rows are dictionaries."""
    zone, as_dictionaries = "-c timezone=Asia/Tokyo", cast("Any", dict_row)
    async with await psycopg.AsyncConnection.connect(dsn, options=zone, row_factory=as_dictionaries) as connection:
        await every_read(async_client, connection)
        await connection.rollback()
    with psycopg.connect(dsn, options=zone, row_factory=as_dictionaries) as sync_connection:
        every_read_sync(client, sync_connection)


# --- what an application may have done to its connections -------------------------------------------------------------


async def test_codecs_of_asyncpg_have_no_part_in_it(async_client: AsyncClient, dsn: str) -> None:
    """Nearly every program on asyncpg has told it to encode jsonb by ``json.dumps``."""
    async with connected(dsn) as connection:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        chain = await async_client.start_chain(work, ODD, attributes=ATTRIBUTES, connection=connection)
        keyed = await async_client.start_chain(work, ODD, deduplication=Deduplicate("a"), connection=connection)
        await async_client.complete_chain(keyed, 5, connection=connection)
    job = await async_client.get_job(chain.id)
    assert Order.model_validate(job.input) == ODD
    assert (await async_client.get_chain(keyed.id, work)).status is ChainStatus.COMPLETED
    assert [one.id for one in await async_client.list_chains(attributes=ATTRIBUTES)] == [chain.id]


async def test_no_codec_of_any_type_has_a_part_in_it(async_client: AsyncClient, dsn: str) -> None:
    """Neither in what is sent nor in what is read, by a connection of the caller's or one that a pool lends."""

    async def spoil(connection: Any) -> None:
        for name in ("text", "int4", "int8", "float8", "bool", "timestamptz", "json", "jsonb"):
            await connection.set_type_codec(
                name, encoder=lambda value: f"<{value}>", decoder=lambda value: f"<{value}>", schema="pg_catalog"
            )

    async with connected(dsn) as connection:
        await spoil(connection)
        async with connection.transaction():
            await every_read(async_client, connection)
            assert await connection.fetchval("SELECT 1") == "<1>"  # What the caller reads is as the caller wants it.
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, init=spoil) as pool:
        chain = await async_client.start_chain(work, ODD, id="by a pool", connection=pool)
        async with pool.acquire() as lent:
            read = await async_client.get_chain(chain.id, connection=lent)
        assert read.created_at.tzinfo is UTC
        with pytest.raises(StateUnavailableError, match="released back to the pool"):
            await async_client.get_chain(chain.id, connection=lent)


async def test_a_traced_connection_of_asyncpg(async_client: AsyncClient, dsn: str) -> None:
    """Some tools replace the method by one that takes anything; a version of asyncpg may have none."""
    private: Any = asyncpg.Connection
    plain, sent = private._execute, []

    async def traced(*given: Any, **named: Any) -> Any:
        sent.append(given[1])
        return await plain(*given, **named)

    class Traced(asyncpg.Connection):
        _execute = traced

    class Other(asyncpg.Connection):
        async def _execute(self, query: Any, args: Any, limit: Any, timeout: Any, *, record_class: Any = None) -> Any:
            return await plain(self, query, args, limit, timeout, record_class=record_class)

    for kind in (Traced, Other):
        async with connected(dsn, connection_class=kind) as connection:
            await async_client.start_chain(work, ODD, id=kind.__name__, connection=connection)
    assert ids(dsn) == {"Traced", "Other"}
    assert any("INSERT INTO" in query for query in sent)


def test_factories_and_decoders_of_psycopg2_have_no_part_in_it(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn, connection_factory=psycopg2.extras.LoggingConnection) as connection:
        connection.initialize(logging.getLogger(__name__))
        connection.cursor_factory = psycopg2.extras.RealDictCursor
        as_text = psycopg2.extensions.new_type((1184,), "AS_TEXT", lambda value, cursor: value)
        psycopg2.extensions.register_type(as_text, connection)
        client.start_chain(work, ODD, id="a", connection=connection)
        attached = client.start_chain(work, ODD, id="a", attach=True, connection=connection)
        assert attached.deduplicated
        connection.commit()
    job = client.get_job("a")
    assert job.created_at.tzinfo is not None
    assert Order.model_validate(job.input) == ODD


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [None, "a"], ids=["plain", "chosen"])
async def test_without_a_transaction_asyncpg_commits_at_once(
    async_client: AsyncClient, dsn: str, id: str | None
) -> None:
    async with connected(dsn) as connection:
        chain = await async_client.start_chain(work, ODD, id=id, connection=connection)
        assert not connection.is_in_transaction()
        assert chain.id in ids(dsn)
        with pytest.raises(JobIdConflictError) as caught:
            await async_client.start_chains(
                [NewChain(work, ODD, id="b"), NewChain(work, ODD, id=chain.id)], connection=connection
            )
        assert caught.value.ids == (chain.id,)
        assert not connection.is_in_transaction()
        assert "b" not in ids(dsn)


async def test_a_transaction_that_was_begun_by_a_text(async_client: AsyncClient, dsn: str) -> None:
    """asyncpg's own ``transaction()`` refuses such a one."""
    async with connected(dsn) as connection:
        await connection.execute("BEGIN")
        await async_client.start_chain(work, ODD, id="a", connection=connection)
        await connection.execute("ROLLBACK")
        assert "a" not in ids(dsn)


async def test_asyncpg_in_autocommit_of_sqlalchemy(async_client: AsyncClient, dsn: str) -> None:
    address = callers.sqlalchemy_url(dsn, "postgresql+asyncpg")
    engine = create_async_engine(address, isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        await async_client.start_chain(work, ODD, id="a", connection=session)
        assert "a" in ids(dsn)
    await engine.dispose()


@pytest.mark.parametrize("id", [None, "a"], ids=["plain", "chosen"])
def test_psycopg2_in_autocommit(client: Client, dsn: str, id: str | None) -> None:
    with psycopg2_connected(dsn, autocommit=True) as connection:
        chain = client.start_chain(work, ODD, id=id, connection=connection)
        assert connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE
        assert chain.id in ids(dsn)
        with pytest.raises(JobIdConflictError):
            client.start_chain(work, ODD, id=chain.id, connection=connection)
        assert connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    with callers.engine(dsn, "postgresql+psycopg2", isolation_level="AUTOCOMMIT") as engine, Session(engine) as session:
        client.start_chain(work, ODD, id="b", connection=session)
        assert "b" in ids(dsn)


async def test_asyncpgs_pool_lends_a_connection(async_client: AsyncClient, dsn: str) -> None:
    """The start commits by itself, all or nothing, and the connection goes back as it was."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        await async_client.start_chain(work, ODD, id="a", connection=pool)
        with pytest.raises(JobIdConflictError):
            await async_client.start_chains([NewChain(work, ODD, id="b"), NewChain(work, ODD, id="a")], connection=pool)
        await async_client.cancel_chain("a", connection=pool)
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()
    assert (await async_client.get_chain("a")).status is ChainStatus.CANCELLED
    assert "b" not in ids(dsn)
    with pytest.raises(StateUnavailableError):
        await async_client.start_chain(work, ODD, connection=pool)


def test_psycopg2s_pool_lends_a_connection(client: Client, dsn: str) -> None:
    pool = psycopg2.pool.ThreadedConnectionPool(1, 1, dsn)
    client.start_chain(work, ODD, id="a", connection=pool)
    with pytest.raises(JobIdConflictError):
        client.start_chains([NewChain(work, ODD, id="b"), NewChain(work, ODD, id="a")], connection=pool)
    client.cancel_chain("a", connection=pool)
    assert client.get_chain("a").status is ChainStatus.CANCELLED
    assert "b" not in ids(dsn)
    taken = pool.getconn()
    with pytest.raises(StateUnavailableError, match="exhausted"):
        client.start_chain(work, ODD, connection=pool)
    pool.putconn(taken)
    pool.closeall()


def test_an_asynchronous_connection_of_psycopg2(client: Client, dsn: str) -> None:
    connection = psycopg2.connect(dsn, async_=1)
    with closing(connection), pytest.raises(UnsupportedConnectionError, match="takes a connection"):
        client.start_chain(work, ODD, connection=connection)


async def test_the_other_mode(async_client: AsyncClient, client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn) as connection, connection.cursor() as cursor:
        for given in (connection, cursor):
            with pytest.raises(UnsupportedConnectionError, match="use a Client with it"):
                await async_client.start_chain(work, ODD, connection=given)
    async with connected(dsn) as connection:
        with pytest.raises(UnsupportedConnectionError, match="use an AsyncClient with it"):
            client.start_chain(work, ODD, connection=connection)
    made = create_async_engine(callers.sqlalchemy_url(dsn, "postgresql+asyncpg"))
    async with AsyncSession(made) as session:
        with pytest.raises(UnsupportedConnectionError, match=r"on asyncpg.*\(use an AsyncClient"):
            await session.run_sync(lambda inner: client.start_chain(work, ODD, connection=inner))
    await made.dispose()


# --- errors, notifications, events ------------------------------------------------------------------------------------


async def test_errors_of_asyncpg_are_those_of_the_store(async_client: AsyncClient, dsn: str) -> None:
    async with connected(dsn) as connection, connection.transaction():
        await async_client.start_chain(work, ODD, id="a", connection=connection)
        with pytest.raises(JobIdConflictError) as conflict:
            await async_client.start_chain(work, ODD, id="a", connection=connection)
        assert isinstance(conflict.value.__cause__, psycopg.errors.UniqueViolation)
        assert isinstance(conflict.value.__cause__.__cause__, asyncpg.UniqueViolationError)
        with pytest.raises(ChainNotFoundError):
            await async_client.start_chain(work, ODD, blockers=["nobody"], connection=connection)
        await connection.execute("SET LOCAL statement_timeout = 1")
        with pytest.raises(StateUnavailableError, match="statement timeout"):
            await async_client.start_chains(
                [NewChain(work, ODD, id=f"slow{number}") for number in range(10_000)], connection=connection
            )
        await connection.execute("SET LOCAL statement_timeout = 0")
    with pytest.raises(StateUnavailableError):
        await async_client.start_chain(work, ODD, connection=connection)
    assert "a" in ids(dsn)


def test_errors_of_psycopg2_are_those_of_the_store(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn) as connection:
        client.start_chain(work, ODD, id="a", connection=connection)
        with pytest.raises(JobIdConflictError) as conflict:
            client.start_chain(work, ODD, id="a", connection=connection)
        assert isinstance(conflict.value.__cause__, psycopg.errors.UniqueViolation)
        assert isinstance(conflict.value.__cause__.__cause__, psycopg2.errors.UniqueViolation)
        with pytest.raises(ChainNotFoundError):
            client.start_chain(work, ODD, blockers=["nobody"], connection=connection)
        connection.commit()
    assert "a" in ids(dsn)
    with pytest.raises(StateUnavailableError):
        client.start_chain(work, ODD, connection=connection)


async def test_a_schema_that_is_dropped(async_client: AsyncClient, dsn: str) -> None:
    await async_client.list_chains()
    async with connected(dsn) as connection:
        await connection.execute("ALTER SCHEMA queuert RENAME TO gone")
        with pytest.raises(SchemaMissingError, match="queuert migrate up"):
            await async_client.start_chain(work, ODD, connection=connection)


async def test_notifications_go_out_with_asyncpgs_commit(async_client: AsyncClient, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN queuert_jobs")
        async with connected(dsn) as connection:
            transaction = connection.transaction()
            await transaction.start()
            await async_client.start_chain(work, ODD, connection=connection)
            listener.execute("NOTIFY queuert_jobs, 'before'")
            await transaction.commit()
            listener.execute("NOTIFY queuert_jobs, 'end'")
        seen = []
        for notification in listener.notifies(timeout=WAIT):
            seen.append(notification.payload)
            if notification.payload == "end":
                break
    assert [encoding.decode(one) for one in seen] == [frozenset({one}) for one in ("before", "work", "end")]


async def test_events_say_whether_it_was_committed(dsn: str) -> None:
    log = EventLog()
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, observability=log) as client:
        async with connected(dsn) as connection:
            await client.start_chain(work, ODD, id="at once", connection=connection)
            async with connection.transaction():
                await client.start_chain(work, ODD, id="later", connection=connection)
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
            await client.start_chain(work, ODD, id="by a pool", connection=pool)
        engine = create_async_engine(callers.sqlalchemy_url(dsn, "postgresql+asyncpg"))
        async with AsyncSession(engine) as session:
            await client.start_chain(work, ODD, id="rolled back", connection=session)
            await session.rollback()
            await client.start_chain(work, ODD, id="by a session", connection=session)
            await session.commit()
        await engine.dispose()
    started = [(event.chain_id, event.committed) for event in log.events if isinstance(event, ChainStarted)]
    assert started == [("at once", True), ("later", False), ("by a pool", True), ("by a session", True)]


def test_events_of_psycopg2(dsn: str) -> None:
    log = EventLog()
    with (
        Client(PostgresState(dsn), JOB_TYPES, observability=log) as client,
        psycopg2_connected(dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        client.start_chain(work, ODD, id="at once", connection=connection)
        client.start_chain(work, ODD, id="by a cursor", connection=cursor)
        connection.autocommit = False
        client.start_chain(work, ODD, id="later", connection=connection)
        connection.commit()
    started = [(event.chain_id, event.committed) for event in log.events if isinstance(event, ChainStarted)]
    assert started == [("at once", True), ("by a cursor", True), ("later", False)]


# --- statements -------------------------------------------------------------------------------------------------------


def test_every_parameter_of_a_callers_statement_has_a_cast() -> None:
    """Other drivers send text: the statement says what it is."""
    sections = read_sections("queuert.state.postgres", "sql", ".sql")
    bare = {name: re.findall(r"%\(\w+\)s(?!::)", sections[name]) for name in CALLERS_STATEMENTS}
    assert {name: found for name, found in bare.items() if found} == {}


CALLERS_STATEMENTS = (
    *("start_one", "start_uniform", "start_jobs", "start_if_absent", "lock_deduplication_keys", "find_duplicates"),
    *("find_chains_by_id", "lock_in_order", "add_blockers", "lock_chains", "lock_jobs", "cancel_chains"),
    *(
        "complete_chains",
        "continue_chains",
        "retry_chains",
        "reblock_dependents",
        "reblock_job",
        "trigger_jobs",
        "lock_chains_for_delete",
    ),
    *("external_references", "delete_chains", "delete_keys", "delete_attributes", "release_dependents", "notify"),
    *("find_expired_ids", "lock_prunable", "prune", "database"),
)


# --- another database -------------------------------------------------------------------------------------------------


@pytest.fixture
def other_dsn(template_databases: TemplateDatabases) -> Iterator[str]:
    """Another database, with the same schema."""
    with template_databases.database() as dsn:
        yield dsn


@pytest.mark.parametrize("make", callers.CALLERS, ids=lambda make: make.__name__)
def test_another_database_is_refused(client: Client, other_dsn: str, make: Any) -> None:
    with make(other_dsn) as caller:
        with pytest.raises(UnsupportedConnectionError, match="must be one to the database of this client"):
            client.start_chain(work, ODD, connection=caller.given)
        with pytest.raises(UnsupportedConnectionError, match="nothing was written"):
            client.cancel_chains(["any"], connection=caller.given)
        caller.rollback()
    assert ids(other_dsn) == set()


@pytest.mark.parametrize("make", callers.ASYNC_CALLERS, ids=lambda make: make.__name__)
async def test_another_database_is_refused_async(async_client: AsyncClient, other_dsn: str, make: Any) -> None:
    async with make(other_dsn) as caller:
        with pytest.raises(UnsupportedConnectionError, match="must be one to the database of this client"):
            await async_client.start_chain(work, ODD, connection=caller.given)
        with pytest.raises(UnsupportedConnectionError, match="nothing was written"):
            await async_client.cancel_chains(["any"], connection=caller.given)
        await caller.rollback()
    assert ids(other_dsn) == set()


async def test_pools_of_another_database(async_client: AsyncClient, client: Client, other_dsn: str) -> None:
    async with asyncpg.create_pool(other_dsn, min_size=1, max_size=1) as pool:
        with pytest.raises(UnsupportedConnectionError, match="must be one to the database"):
            await async_client.start_chain(work, ODD, connection=pool)
    pool2 = psycopg2.pool.SimpleConnectionPool(1, 1, other_dsn)
    with pytest.raises(UnsupportedConnectionError, match="must be one to the database"):
        client.start_chain(work, ODD, connection=pool2)
    pool2.closeall()
    assert ids(other_dsn) == set()


async def test_a_connection_is_compared_once(async_client: AsyncClient, dsn: str) -> None:
    """A start on a connection that is known takes as many statements as before."""
    sent: list[str] = []
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        for _ in range(3):
            async with pool.acquire() as connection:
                connection.add_query_logger(logger := lambda record: sent.append(record.query))
                async with connection.transaction():
                    await async_client.start_chain(work, ODD, connection=connection)
                connection.remove_query_logger(logger)
    compared = [query for query in sent if "pg_postmaster_start_time" in query]
    started = [query for query in sent if "INSERT INTO" in query]
    assert (len(compared), len(started)) == (1, 3)


async def test_after_a_failover_the_stores_own_database_is_read_again(dsn: str) -> None:
    """What its server answered before is no reason to reject a connection."""
    store = PostgresState(dsn).async_store()
    await store.open()
    try:
        store._database.row = Database(1, "another start", "the server before")
        async with connected(dsn) as connection:
            await store.start_jobs([NewJob("a", "work", "{}")], connection=connection)
    finally:
        await store.aclose()
    assert ids(dsn) == {"a"}


def test_the_same_address_needs_no_statement(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn, connection_factory=psycopg2.extras.LoggingConnection) as connection:
        sent: list[str] = []
        connection.filter = lambda message, cursor: sent.append(str(message))
        connection.initialize(None)
        client.start_chain(work, ODD, connection=connection)
        connection.rollback()
    assert not any("pg_postmaster_start_time" in query for query in sent)


def test_times_are_read_alike(client: Client, dsn: str) -> None:
    with psycopg2_connected(dsn, autocommit=True) as connection:
        connection.cursor().execute("SET TIME ZONE 'Asia/Kathmandu'")
        chain = client.start_chain(work, ODD, connection=connection)
    job = client.get_job(chain.id)
    assert abs((job.created_at - datetime.now(UTC)).total_seconds()) < 3600
