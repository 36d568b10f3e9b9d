"""Starts in transactions of two phases, which a server refuses to prepare if they notify."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain, PostgresState, after, migrations
from queuert.embedded import EmbeddedPostgres
from queuert.errors import ChainNotFoundError
from queuert.jobs import ChainStatus
from tests.conftest import StartPostgres

work = JobType("work", input=int, output=int, completed_by="client")
JOB_TYPES = JobTypes(work)


@pytest.fixture
def server(private_postgres: StartPostgres) -> EmbeddedPostgres:
    """Yield a server that allows prepared transactions."""
    server = private_postgres(durable=False, settings={"max_prepared_transactions": 4})
    migrations.upgrade(server.dsn())
    return server


@pytest.fixture
def client(server: EmbeddedPostgres) -> Iterator[Client]:
    with Client(PostgresState(server.dsn()), JOB_TYPES) as client:
        yield client


def test_all_that_a_client_writes_may_be_prepared(client: Client, server: EmbeddedPostgres) -> None:
    """Starts, completions, cancellations, retries and changes: they commit with the second phase, or not at all."""
    one, two, three, four = client.start_chains([NewChain(work, number) for number in range(4)])
    client.cancel_chain(three)
    with psycopg.connect(server.dsn()) as connection:
        started = ""
        for phase in ("rollback", "commit"):
            connection.tpc_begin(connection.xid(1, f"queuert {phase}", ""))
            started = client.start_chain(work, 5, connection=connection).id
            client.complete_chain(one, 1, connection=connection)
            client.cancel_chain(two, connection=connection)
            client.retry_chain(three, connection=connection)
            client.reschedule_chains([four], after(hours=1), connection=connection)
            connection.tpc_prepare()
            with pytest.raises(ChainNotFoundError):
                client.get_chain(started)
            assert client.get_chain(one.id).status is ChainStatus.OPEN
            if phase == "rollback":
                connection.tpc_rollback()
            else:
                connection.tpc_commit()
    found = [client.get_chain(id).status.value for id in (started, one.id, two.id, three.id, four.id)]
    assert found == ["open", "completed", "cancelled", "open", "open"]


async def test_an_asynchronous_client(server: EmbeddedPostgres) -> None:
    async with (
        AsyncClient(PostgresState(server.dsn()), JOB_TYPES) as client,
        await psycopg.AsyncConnection.connect(server.dsn()) as connection,
    ):
        await connection.tpc_begin(connection.xid(1, "asynchronous", ""))
        chain = await client.start_chain(work, 1, connection=connection)
        await connection.tpc_prepare()
        await connection.tpc_commit()
        assert (await client.get_chain(chain.id)).status is ChainStatus.OPEN


def test_a_transaction_of_sqlalchemy(client: Client, server: EmbeddedPostgres) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(server.dsn()))
    with engine.connect() as connection:
        with connection.begin_twophase() as transaction:
            chain = client.start_chain(work, 1, connection=connection)
            transaction.prepare()
        assert client.get_chain(chain.id).status is ChainStatus.OPEN
    engine.dispose()
