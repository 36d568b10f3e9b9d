"""Postgres honours the contract of a state adapter."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from queuert.state.postgres import PostgresState
from queuert.testing.conformance import Mode
from queuert.testing.conformance.pytest_plugin import conformance_tests

pytestmark = pytest.mark.every_case


class Rows:
    """A table of the user's own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE users_own (key text PRIMARY KEY)")

    async def add(self, connection: Any, key: str) -> None:
        if isinstance(connection, psycopg.AsyncConnection):
            await connection.execute("INSERT INTO users_own VALUES (%s)", [key])
        else:
            await asyncio.to_thread(connection.execute, "INSERT INTO users_own VALUES (%s)", [key])

    async def keys(self) -> set[str]:
        async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
            cursor = await connection.execute("SELECT key FROM users_own")
            return {row[0] for row in await cursor.fetchall()}

    @asynccontextmanager
    async def transaction(self, mode: Mode) -> AsyncIterator[Any]:
        if mode is Mode.ASYNC:
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                yield connection
        else:
            with psycopg.connect(self._dsn) as connection:
                yield connection


@pytest.fixture
def state(dsn: str) -> PostgresState:
    return PostgresState(dsn)


@pytest.fixture
def rows(dsn: str) -> Rows:
    return Rows(dsn)


test_postgres = conformance_tests("state", user_data="rows")
