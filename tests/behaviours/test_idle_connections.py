"""A connection that the server has closed while it was idle costs no call: for each store with a server, and each
mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import redis

from queuert import AsyncClient, Client, PostgresState
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from tests.support.job_types import JOB_TYPES, number

AT_ONCE = 4

Server = tuple[StateAdapter, Callable[[], int]]
"""A store, and a function that closes all connections to its server, and returns their number."""

CLOSE = """
    select pg_terminate_backend(pid, 60000) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


def _postgres(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return len(connection.execute(CLOSE).fetchall())


def _redis(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.client_kill_filter(_type="normal", skipme=True))


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each store that has a server."""
    if request.param == "postgres":
        dsn = request.getfixturevalue("dsn")
        return PostgresState(dsn), lambda: _postgres(dsn)
    url = request.getfixturevalue("redis_url")
    return RedisState(url), lambda: _redis(url)


@pytest.mark.quick
async def test_what_the_server_closed_while_it_was_idle_costs_no_call(server: Server) -> None:
    state, close = server
    async with AsyncClient(state, JOB_TYPES) as client:

        async def start(value: int) -> str:
            return (await client.start_chain(number, value)).id

        for first in range(0, 3 * AT_ONCE, AT_ONCE):
            ids = await asyncio.gather(*map(start, range(first, first + AT_ONCE)))
            assert [(await client.get_chain(id)).input for id in ids] == list(range(first, first + AT_ONCE))
            assert await asyncio.to_thread(close) > 0


def test_in_threads(server: Server) -> None:
    state, close = server
    with Client(state, JOB_TYPES) as client, ThreadPoolExecutor(AT_ONCE) as threads:

        def start(value: int) -> str:
            return client.start_chain(number, value).id

        for first in range(0, 3 * AT_ONCE, AT_ONCE):
            ids = list(threads.map(start, range(first, first + AT_ONCE)))
            assert [client.get_chain(id).input for id in ids] == list(range(first, first + AT_ONCE))
            assert close() > 0
