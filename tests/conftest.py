"""The servers and databases that tests use.

| fixture | gives |
|---|---|
| `dsn` | a migrated database of the test's own, on the shared server |
| `bare_dsn` | an empty one |
| `mode` | the one and the other mode of stores: the test runs twice |
| `stores` | stores of that mode on `dsn` |
| `state` | the state adapter of each store: the test runs three times |
| `postgres_server` | the shared server's connection string, to nothing but its maintenance database |
| `private_postgres` | a function that starts a server of the test's own, to be killed and restarted |
| `redis_url` | the shared Redis, emptied before each test |
| `private_redis` | a function that starts a Redis of the test's own |
| `temporary` | a directory that other users can pass |

The shared servers are started once, when a test first needs them, and are fast because they flush nothing to the disk.
Never kill or reconfigure them. `QUEUERT_TEST_DSN` and `QUEUERT_TEST_REDIS_URL` name servers to use in their place.
Without a server, tests are skipped; with `QUEUERT_REQUIRE_SERVERS=1`, as in `make test`, they fail.
"""

import contextlib
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn, Protocol

import psycopg
import pytest
import redis as redis_client
from hypothesis import HealthCheck, settings
from psycopg import sql

from queuert.embedded import EmbeddedPostgres, EmbeddedRedis, EmbeddedServerError
from queuert.state.adapter import StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance import Mode, Stores
from queuert.testing.databases import TemplateDatabases
from tests.support.conformance_table import pytest_terminal_summary
from tests.support.invariants import add_checks

__all__ = ["pytest_terminal_summary"]

pytest_plugins = ("tests.support.record", "tests.support.runaways", "tests.support.sizes")

FAST_SETTINGS: dict[str, str | int] = {"autovacuum": "off", "max_connections": 300}

_SCRAM_ITERATIONS_SINCE = 160000
"""The version of Postgres, as a number."""

TIMEOUT = 90.0
"""Seconds that a shared server may take to start: all processes of a run begin with that, at once."""


settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # How fast examples are made and run depends on what else the machine does.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    parser.addoption(
        "--both-modes", action="store_true", help="run each case of the conformance suite sync and async on each store"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that break things wait for most of their time: first, beside the others, and none of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("fault") is None)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end: looking for garbage among them again and again takes minutes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_settings() -> Iterator[None]:
    """Leave the log as it was found: Litestar sets it up, and commands do; what is logged costs the next tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class StartPostgres(Protocol):
    """Starts a Postgres of the test's own; it is stopped when the test ends."""

    def __call__(self, *, durable: bool = True, settings: dict[str, str | int] | None = None) -> EmbeddedPostgres: ...


class StartRedis(Protocol):
    """Starts a Redis of the test's own; it is stopped when the test ends."""

    def __call__(self, *, options: dict[str, str | int] | None = None) -> EmbeddedRedis: ...


def server_is_missing(error: EmbeddedServerError) -> NoReturn:
    """Skip the test for want of a server, or fail it where servers are required."""
    if os.environ.get("QUEUERT_REQUIRE_SERVERS") == "1":
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Make a directory for the temporary files of one test, which whoever Postgres runs as can pass.

    Below ``tmp_path`` nobody else can: each start of pytest closes the directory above all of those to others.
    """
    path = Path(tempfile.mkdtemp(prefix="queuert-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)  # A server that was killed may remove its files at the same time.


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The connection string of the shared server's maintenance database."""
    given = os.environ.get("QUEUERT_TEST_DSN")
    if given:
        yield given
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(EmbeddedPostgres(durable=False, settings=FAST_SETTINGS, timeout=TIMEOUT))
        except EmbeddedServerError as error:
            server_is_missing(error)
        _hash_password_once(server)
        yield server.dsn()


def _hash_password_once(server: EmbeddedPostgres) -> None:
    """Let each of the tests' many connections derive its key in one round instead of 4096: a third of its cost."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        if connection.info.server_version >= _SCRAM_ITERATIONS_SINCE:
            connection.execute("SET scram_iterations = 1")
            connection.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(server.password))


@pytest.fixture(scope="session")
def template_databases(postgres_server: str) -> Iterator[TemplateDatabases]:
    """The maker of the tests' databases, with a template at the newest migration."""
    with TemplateDatabases(postgres_server, _migrate) as databases:
        yield databases


def _migrate(dsn: str) -> None:
    from queuert import migrations  # a test that needs no migrated database runs without it

    migrations.upgrade(dsn)
    add_checks(dsn)


@pytest.fixture
def dsn(template_databases: TemplateDatabases) -> Iterator[str]:
    """The connection string of a migrated database of the test's own."""
    with template_databases.database() as dsn:
        yield dsn


@pytest.fixture
def bare_dsn(template_databases: TemplateDatabases) -> Iterator[str]:
    """The connection string of an empty database of the test's own."""
    dsn = template_databases.create_empty()
    yield dsn
    template_databases.drop(dsn)


@pytest.fixture(params=list(Mode), ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Of stores: asynchronous, synchronous."""
    given: Mode = request.param
    return given


@pytest.fixture
async def stores(dsn: str, mode: Mode) -> AsyncIterator[Stores]:
    """Stores of that mode on a database of the test's own; closed after it."""
    stores = Stores(PostgresState(dsn), mode)
    yield stores
    await stores.aclose()


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> StateAdapter:
    """Each store, without any jobs."""
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState(tmp_path / "queue.db")


@pytest.fixture
def private_postgres() -> Iterator[StartPostgres]:
    """A function that starts a Postgres of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(*, durable: bool = True, settings: dict[str, str | int] | None = None) -> EmbeddedPostgres:
            try:
                return stack.enter_context(EmbeddedPostgres(durable=durable, settings=settings))
            except EmbeddedServerError as error:
                server_is_missing(error)

        yield start


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of the shared Redis, as it is: tests want `redis_url`."""
    given = os.environ.get("QUEUERT_TEST_REDIS_URL")
    if given:
        yield given
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(EmbeddedRedis(timeout=TIMEOUT))
        except EmbeddedServerError as error:
            server_is_missing(error)
        yield server.url()


@pytest.fixture(scope="session")
def _flush_redis(redis_server: str) -> Iterator[Callable[[], object]]:
    with redis_client.Redis.from_url(redis_server) as client:
        yield client.flushdb


@pytest.fixture
def redis_url(redis_server: str, _flush_redis: Callable[[], object]) -> str:
    """The URL of the shared Redis, with nothing in it."""
    _flush_redis()
    return redis_server


@pytest.fixture
def private_redis() -> Iterator[StartRedis]:
    """A function that starts a Redis of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(*, options: dict[str, str | int] | None = None) -> EmbeddedRedis:
            try:
                return stack.enter_context(EmbeddedRedis(options=options))
            except EmbeddedServerError as error:
                server_is_missing(error)

        yield start
