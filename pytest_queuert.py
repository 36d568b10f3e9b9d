"""Fixtures for the tests of programs that use queuert. pytest finds them by itself where queuert is installed.

| fixture | scope | gives |
|---|---|---|
| `queuert_state` | test | an empty `PostgresState` of the test's own |
| `queuert_dsn` | test | the connection string of its database, for the program's own connections |
| `queuert_prepare` | session | what is called once with a database: override it to create your tables there |
| `queuert_database` | session | the connection string of the server |

The server is the one that the environment variable `QUEUERT_TEST_DSN` or the setting `queuert_test_dsn` names; without
either, an embedded one is started (`pip install 'queuert[embedded]'`). Where its role may create databases, each test
has a database of its own; otherwise all have one schema, which is emptied after each, beside the program's own tables.

This module stands apart from the package, and imports it in the fixtures only: pytest loads it at every start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queuert import PostgresState
    from queuert.testing.fixtures import FreshStores

SETTING = "queuert_test_dsn"
VARIABLE = "QUEUERT_TEST_DSN"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting."""
    parser.addini(SETTING, help=f"Postgres server for the queuert_* fixtures; {VARIABLE} goes first", default="")


@pytest.fixture(scope="session")
def queuert_database(pytestconfig: pytest.Config) -> Iterator[str]:
    """The connection string of the Postgres server that the tests use; nothing is written to the database it names."""
    given = os.environ.get(VARIABLE) or str(pytestconfig.getini(SETTING))
    with ExitStack() as stack:
        try:
            from queuert.testing.fixtures import postgres_server

            dsn = stack.enter_context(postgres_server(given))
        except (ImportError, RuntimeError) as error:
            pytest.fail(f"no Postgres for queuert_database: set {VARIABLE}, or mend this: {error}", pytrace=False)
        yield dsn


@pytest.fixture(scope="session")
def queuert_prepare() -> Callable[[str], None]:
    """What is done once to the database that each test gets a copy of: nothing, unless it is overridden."""
    return lambda dsn: None


@pytest.fixture(scope="session")
def _queuert_stores(queuert_database: str, queuert_prepare: Callable[[str], None]) -> Iterator[FreshStores]:
    from queuert.testing.fixtures import fresh_stores

    with fresh_stores(queuert_database, queuert_prepare) as stores:
        yield stores


@pytest.fixture
def _queuert_store(_queuert_stores: FreshStores) -> Iterator[tuple[str, PostgresState]]:
    with _queuert_stores.fresh() as store:
        yield store


@pytest.fixture
def queuert_dsn(_queuert_store: tuple[str, PostgresState]) -> str:
    """The connection string of the database in which the test's `queuert_state` is."""
    return _queuert_store[0]


@pytest.fixture
def queuert_state(_queuert_store: tuple[str, PostgresState]) -> PostgresState:
    """An empty, migrated store of the test's own: give it to a client, or to `queuert.testing.JobQueue`."""
    return _queuert_store[1]
