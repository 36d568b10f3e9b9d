"""Passwords that expire: a function returns the one that each new connection sends."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import redis
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queuert import AsyncClient, Client, JobStatus, JobType, JobTypes
from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.ids import new_id
from queuert.notify.postgres import PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.observability.events import ListenerLost, ListenerRestored
from queuert.passwords import current_password
from queuert.run_at import after
from queuert.state import StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.redis import RedisState
from queuert.testing.clock import times_of
from queuert.testing.events import EventLog
from tests.support.waiting import until

JOB_TYPES = JobTypes(JobType("work", input=int, output=int))


class Tokens:
    """A login of the test's own, whose password changes: the one before is refused then."""

    def __init__(self) -> None:
        self.current = "first"
        self.error: Exception | None = None
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> str:
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise self.error
        return self.current

    def state(self, password: Any) -> StateAdapter:
        """Return an adapter that connects by this login, with this function."""
        raise NotImplementedError

    def change(self) -> None:
        """Change the password, and end all sessions of the login."""
        raise NotImplementedError


class PostgresTokens(Tokens):
    """A role in the test's database."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._role = f"tokens_of_{conninfo_to_dict(dsn)['dbname']}"
        self._execute("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD {password}")

    def state(self, password: Any) -> PostgresState:
        return PostgresState(make_conninfo(self._dsn, user=self._role, password="wrong"), password=password)

    def change(self) -> None:
        self.current = "second"
        self._execute("ALTER ROLE {role} PASSWORD {password}")
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", [self._role]
            )

    def close(self) -> None:
        self._execute("DROP ROLE {role}")

    def _execute(self, command: Any) -> None:
        statement = sql.SQL(command).format(role=sql.Identifier(self._role), password=sql.Literal(self.current))
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement)


class RedisTokens(Tokens):
    """A user of the server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._namespace, self._user = new_id(), new_id()
        self._server = redis.Redis.from_url(url)
        arguments = self._server.connection_pool.connection_kwargs
        self._url = f"redis://{self._user}:wrong@{arguments['host']}:{arguments['port']}/{arguments.get('db', 0)}"
        self._set("+first")

    def state(self, password: Any) -> RedisState:
        return RedisState(self._url, namespace=self._namespace, password=password)

    def change(self) -> None:
        self.current = "second"
        self._set("+second")
        for one in self._server.client_list():
            if one["user"] == self._user:
                self._server.client_kill_filter(_id=one["id"])

    def close(self) -> None:
        self._server.acl_deluser(self._user)
        self._server.close()

    def _set(self, password: str) -> None:
        self._server.acl_setuser(
            self._user,
            enabled=True,
            reset=True,
            passwords=[password],
            keys="*",
            channels="*",
            categories=["+@all"],
        )


@pytest.fixture(params=["postgres", "redis"])
def tokens(request: pytest.FixtureRequest) -> Iterator[PostgresTokens | RedisTokens]:
    """A login."""
    if request.param == "postgres":
        made: PostgresTokens | RedisTokens = PostgresTokens(request.getfixturevalue("dsn"))
    else:
        made = RedisTokens(request.getfixturevalue("redis_url"))
    yield made
    made.close()


async def test_each_connection_of_a_client_sends_the_current_password(tokens: PostgresTokens | RedisTokens) -> None:
    """The listener's, too; the function is not called in the event loop's thread."""
    log = EventLog()
    async with AsyncClient(tokens.state(tokens), JOB_TYPES, observability=log) as client:
        await client.start_chain(JOB_TYPES["work"], 1)
        await until(lambda: client.notify.healthy, "the listener has connected")
        tokens.change()
        await log.wait_for(ListenerLost)
        await log.wait_for(ListenerRestored)
        with suppress(StateUnavailableError):  # It may take a connection before that is closed.
            await client.start_chain(JOB_TYPES["work"], 2)
        chain = await client.start_chain(JOB_TYPES["work"], 2)
        assert (await client.get_chain(chain.id)).id == chain.id
    assert threading.main_thread() not in tokens.threads


def test_each_connection_of_a_sync_client_sends_the_current_password(tokens: PostgresTokens | RedisTokens) -> None:
    with Client(tokens.state(tokens), JOB_TYPES) as client:
        client.start_chain(JOB_TYPES["work"], 1)
        tokens.change()
        with suppress(StateUnavailableError):  # It may take a connection before that is closed.
            client.start_chain(JOB_TYPES["work"], 2)
        chain = client.start_chain(JOB_TYPES["work"], 3)
        assert client.get_chain(chain.id).id == chain.id


async def test_what_the_function_raises_is_the_reason(tokens: PostgresTokens | RedisTokens) -> None:
    """Nothing else is tried: when it returns a password again, calls work."""
    client = AsyncClient(tokens.state(tokens), JOB_TYPES)
    tokens.error = OSError("no metadata service")
    with pytest.raises(StateUnavailableError, match="returns the password raised OSError: no metadata service"):
        await client.open()
    tokens.error = None
    async with client:
        await client.start_chain(JOB_TYPES["work"], 1)
        tokens.error = OSError("gone again")
        reason = ""
        while "gone again" not in reason:
            # A call may have a connection that was not closed yet, or one that was being made when they were closed.
            tokens.change()
            try:
                await client.start_chain(JOB_TYPES["work"], 2)
            except StateUnavailableError as error:
                reason = str(error)
        tokens.error = None
        await client.start_chain(JOB_TYPES["work"], 3)


def test_what_is_no_text_is_refused(tokens: PostgresTokens | RedisTokens) -> None:
    with pytest.raises(StateUnavailableError, match="must return text, got bytes"):
        Client(tokens.state(lambda: b"first"), JOB_TYPES).open()


def test_one_that_hangs_is_given_up(
    tokens: PostgresTokens | RedisTokens, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    """Else a worker would renew no lease while it waits."""
    monkeypatch.setattr("queuert.passwords._SECONDS", 0.1)
    with pytest.raises(StateUnavailableError, match=r"has not returned within 0\.1 s: give what it"):
        Client(tokens.state(lambda: str(ended.wait())), JOB_TYPES).open()


async def test_one_that_hangs_is_given_up_in_a_coroutine(
    tokens: PostgresTokens | RedisTokens, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    monkeypatch.setattr("queuert.passwords._SECONDS", 0.1)
    with pytest.raises(StateUnavailableError, match=r"has not returned within 0\.1 s: give what it"):
        await AsyncClient(tokens.state(lambda: str(ended.wait())), JOB_TYPES).open()


async def test_a_coroutine_needs_no_thread_of_the_loop(
    tokens: PostgresTokens | RedisTokens, ended: threading.Event
) -> None:
    """Handlers may have filled them, and a worker that stops would wait for one that hangs."""
    threads = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads)
    blocked = loop.run_in_executor(None, ended.wait)
    async with AsyncClient(tokens.state(tokens), JOB_TYPES) as client:
        assert (await client.list_jobs()).items == ()
    ended.set()
    await blocked


def test_one_that_hangs_has_one_thread(monkeypatch: pytest.MonkeyPatch, ended: threading.Event) -> None:
    """However often somebody tries to connect; when it has returned, it is called anew."""
    monkeypatch.setattr("queuert.passwords._SECONDS", 0.01)
    calls: list[int] = []

    def hang() -> str:
        calls.append(1)
        ended.wait()
        return "first"

    for _ in range(5):
        with pytest.raises(StateUnavailableError, match="has not returned"):
            current_password(hang)
    assert len(calls) == 1
    ended.set()
    monkeypatch.setattr("queuert.passwords._SECONDS", 60.0)
    assert current_password(hang) == "first"


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_moved_clock_uses_it(tokens: PostgresTokens | RedisTokens) -> None:
    state = tokens.state(tokens)
    with Client(state, JOB_TYPES) as client:
        client.start_chain(JOB_TYPES["work"], 1, run_at=after(hours=1))
        times_of(state).shift(3600.0, leases=False)
        assert [job.status for job in client.list_jobs()] == [JobStatus.READY]


def test_doctor_uses_it(tokens: PostgresTokens | RedisTokens) -> None:
    state = tokens.state(tokens)
    assert state.diagnose()
    tokens.error = OSError("no metadata service")
    with pytest.raises(StateUnavailableError, match="no metadata service"):
        state.diagnose()


@pytest.mark.parametrize("make", [PostgresState, PostgresNotify, RedisState, RedisNotify])
def test_it_must_be_a_function(make: Callable[..., Any]) -> None:
    given: Any = "hunter2"
    url = "redis://localhost" if make in (RedisState, RedisNotify) else "postgresql://localhost/app"
    with pytest.raises(
        ConfigurationError, match=r"password must be a function .* got str: write one that does not expire"
    ) as e:
        make(url, password=given)
    assert given not in str(e.value)


async def later() -> str:
    """Not a plain function."""
    return "first"


class Later:
    """An object that is called like a coroutine function."""

    async def __call__(self) -> str:
        """Return a password, later."""
        return "first"


@pytest.mark.parametrize("password", [later, Later()])
@pytest.mark.parametrize("make", [PostgresState, PostgresNotify, RedisState, RedisNotify])
def test_it_must_be_a_plain_function(make: Callable[..., Any], password: Any) -> None:
    url = "redis://localhost" if make in (RedisState, RedisNotify) else "postgresql://localhost/app"
    with pytest.raises(ConfigurationError, match="must be a plain function, got a coroutine function"):
        make(url, password=password)


def from_a_module() -> str:
    """A password for adapters that are pickled."""
    return "first"


@pytest.mark.parametrize("make", [PostgresState, RedisState])
def test_an_adapter_with_a_function_of_a_module_can_be_pickled(make: Any) -> None:
    url = "redis://localhost" if make is RedisState else "postgresql://localhost/app"
    copied = pickle.loads(pickle.dumps(make(url, password=from_a_module)))
    assert copied._settings.password is from_a_module
    assert "first" not in repr(copied) + repr(copied._settings)
