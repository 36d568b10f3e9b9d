"""What the clients release, and what they refuse to take."""

from __future__ import annotations

from typing import Any, assert_type

import psycopg
import psycopg_pool
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from queuert import AsyncChain, AsyncClient, Chain, Client, Deduplicate, JobType, NewChain, after
from queuert.jobs import ChainState, Job


class Resize(BaseModel):
    url: str
    width: int


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


class Refused(BaseModel):
    why: str


publish = JobType("publish", input=Thumbnail, output=Published)
resize = JobType("resize", input=Resize, continues_with=publish)
check = JobType("check", input=Resize, output=Refused, continues_with=publish)
thumbnail = Thumbnail(key="k")
picture = Resize(url="u", width=1)


def sync(client: Client, connection: Session) -> None:
    chain = client.start_chain(resize, picture, priority=3, run_at=after(minutes=5), connection=connection)
    assert_type(chain, Chain[Published])
    assert_type(chain.result(timeout=30), Published)
    assert_type(client.start_chain(check, picture).result(), Refused | Published)
    assert_type(client.get_chain("id", publish), Chain[Published])
    assert_type(client.get_chain("id"), Chain[Any])
    assert_type(client.wait([chain]), list[Chain[Published]])
    assert_type(client.start_chains([NewChain(resize, picture)]), list[Chain[Published]])
    assert_type(NewChain(check, picture), NewChain[Refused | Published])
    client.start_chain(publish, thumbnail, blockers=[chain, "id"])
    assert_type(client.start_and_wait(resize, picture, timeout=5), Published)
    assert_type(client.find_chain(resize, "key"), Chain[Published] | None)
    assert_type(client.find_chain("resize", "key", scope="any"), Chain[Any] | None)
    assert_type(client.get_jobs(["id"], connection=connection), list[Job])
    client.start_chain(resize, picture, deduplication=Deduplicate("key", debounce=5, max_delay=60), max_attempts=1)

    client.start_chain(resize, picture, max_attempts="one")  # expect: error
    client.start_chain(resize, thumbnail)  # expect: error
    client.start_chain(resize, {"url": "u"})  # expect: error
    client.start_chain("resize", picture)  # expect: error
    client.start_chain(resize, picture, run_at=300)  # expect: error
    client.start_chain(publish, thumbnail, blockers=[17])  # expect: error
    NewChain(resize, thumbnail)  # expect: error
    number: int = chain.result()  # expect: error
    del number


async def asynchronous(client: AsyncClient) -> None:
    chain = await client.start_chain(resize, picture)
    assert_type(chain, AsyncChain[Published])
    assert_type(await chain.result(timeout=30), Published)
    assert_type(await client.get_chain("id", publish), AsyncChain[Published])
    assert_type(await client.wait([chain]), list[AsyncChain[Published]])
    assert_type(await client.start_and_wait(resize, picture, id="i", result_ttl=60), Published)
    assert_type(await client.start_and_wait(check, picture), Refused | Published)

    await client.start_chain(resize, thumbnail)  # expect: error
    await client.start_and_wait(resize, thumbnail)  # expect: error
    number: int = await chain.result()  # expect: error
    del number


def sync_handles(client: Client, chain: Chain[Published], either: Chain[Refused | Published]) -> None:
    assert_type(chain.output, Published | None)
    assert_type(chain.wait(), Chain[Published])
    for state in chain.watch():
        assert_type(state, ChainState)
    chain.complete(Published(address="a"))
    client.complete_chain(chain, Published(address="a"))
    client.complete_chain(either, Refused(why="late"))
    client.complete_chain(client.get_chain("id"), 5)
    client.complete_chain("id", 5)
    client.complete_chain("id", Published(address="a"), expecting=publish)
    read_only: Chain[object] = chain
    del read_only

    chain.complete(5)  # expect: error
    either.complete(Thumbnail(key="k"))  # expect: error
    client.complete_chain(chain, 5)  # expect: error
    client.complete_chain(either, Thumbnail(key="k"))  # expect: error
    client.complete_chain("id", 5, expecting=publish)  # expect: error
    client.complete_chain("id", Refused(why="late"), expecting=resize)  # expect: error


async def async_handles(client: AsyncClient, chain: AsyncChain[Published]) -> None:
    assert_type(chain.output, Published | None)
    async for state in chain.watch():
        assert_type(state, ChainState)
    await chain.complete(Published(address="a"))
    await client.complete_chain(chain, Published(address="a"))

    await chain.complete(5)  # expect: error
    await client.complete_chain(chain, 5)  # expect: error
    await client.complete_chain("id", 5, expecting=publish)  # expect: error
    for one in chain.watch():  # expect: error
        print(one)


def sync_connections(
    client: Client,
    connection: psycopg.Connection,
    cursor: psycopg.Cursor,
    pool: psycopg_pool.ConnectionPool,
    scoped: scoped_session[Session],
    other: psycopg.AsyncConnection,
    session: AsyncSession,
) -> None:
    client.start_chain(resize, picture, connection=connection)
    client.start_chain(resize, picture, connection=cursor)
    client.start_chain(resize, picture, connection=pool)
    client.cancel_chain("id", connection=scoped)

    client.start_chain(resize, picture, connection=other)  # expect: error
    client.cancel_chain("id", connection=session)  # expect: error
    client.start_chain(resize, picture, connection=42)  # expect: error
    client.start_chain(resize, picture, connection="postgresql://")  # expect: error


async def async_connections(
    client: AsyncClient,
    connection: psycopg.AsyncConnection,
    cursor: psycopg.AsyncCursor,
    pool: psycopg_pool.AsyncConnectionPool,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    engine_connection: AsyncConnection,
    other: psycopg.Connection,
) -> None:
    await client.start_chain(resize, picture, connection=connection)
    await client.start_chain(resize, picture, connection=cursor)
    await client.start_chain(resize, picture, connection=pool)
    await client.start_chain(resize, picture, connection=session)
    await client.start_chains([NewChain(resize, picture)], connection=scoped)
    await client.delete_chain("id", connection=engine_connection)

    await client.start_chain(resize, picture, connection=other)  # expect: error
    await client.retry_chain("id", connection=other)  # expect: error
    await client.start_chain(resize, picture, connection=42)  # expect: error
