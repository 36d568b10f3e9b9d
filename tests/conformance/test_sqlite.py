"""SQLite honours the contract of a state adapter, in a file and in memory."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance import Mode
from queuert.testing.conformance.pytest_plugin import conformance_tests


class Rows:
    """A table of the user's own, in the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE users_own (key TEXT PRIMARY KEY)")
        connection.close()

    async def add(self, connection: Any, key: str) -> None:
        await asyncio.to_thread(connection.execute, "INSERT INTO users_own VALUES (?)", [key])

    async def keys(self) -> set[str]:
        connection = sqlite3.connect(self._path)
        try:
            return {row[0] for row in connection.execute("SELECT key FROM users_own")}
        finally:
            connection.close()

    @asynccontextmanager
    async def transaction(self, mode: Mode) -> AsyncIterator[Any]:
        connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def in_file(file: Path) -> SQLiteState:
    return SQLiteState(file, answer_timeout=20.0)


@pytest.fixture
def in_memory() -> Iterator[SQLiteState]:
    state = SQLiteState(answer_timeout=20.0)
    yield state
    state.close()


@pytest.fixture
def rows(file: Path) -> Rows:
    return Rows(file)


# The same statements as in memory: one of the two has all cases in the quick size.
test_file = pytest.mark.every_case(conformance_tests("in_file", user_data="rows"))
test_memory = conformance_tests("in_memory")
