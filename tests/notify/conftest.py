"""Adapters to test, closed when the test ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import pytest
import redis

from queuert.notify import InProcessNotify, NotifyAdapter
from queuert.notify.postgres import ListenerTimeouts, PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.notify.sqlite import SQLiteNotify
from tests.notify.support import WAIT, Party

NewParty: TypeAlias = Callable[[], Party]


@pytest.fixture(params=["in_process", "postgres", "redis", "sqlite"])
def new_party(request: pytest.FixtureRequest) -> Iterator[NewParty]:
    """Makes parties that can hear each other: of one process for one adapter, of several for the others."""
    parties: list[Party] = []
    new_adapter = _maker(request)

    def new() -> Party:
        parties.append(Party(new_adapter()))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()


def _maker(request: pytest.FixtureRequest) -> Callable[[], NotifyAdapter]:
    if request.param == "in_process":
        shared = InProcessNotify()
        return lambda: shared
    if request.param == "sqlite":
        path = request.getfixturevalue("tmp_path") / "queue.db"
        return lambda: SQLiteNotify(path)
    if request.param == "postgres":
        dsn = request.getfixturevalue("bare_dsn")
        return lambda: PostgresNotify(dsn)
    # Channels are the server's, not a database's: what an earlier test left is of another namespace.
    url, namespace = request.getfixturevalue("redis_url"), secrets.token_hex(4)
    return lambda: RedisNotify(url, namespace=namespace)


NewPostgresParty: TypeAlias = Callable[..., Party]


@pytest.fixture
def new_postgres_party() -> Iterator[NewPostgresParty]:
    """Makes parties on Postgres, by connection string."""
    parties: list[Party] = []

    def new(dsn: str, *, timeouts: ListenerTimeouts | None = None, schema: str = "queuert") -> Party:
        parties.append(Party(PostgresNotify(dsn, schema=schema, timeouts=timeouts)))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()


@pytest.fixture
def unhurried_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing wait until the thread has ended: the second that it takes at most may be too short for the thread."""
    monkeypatch.setattr("queuert.notify.listener._LAST_SEND", WAIT)
    monkeypatch.setattr("queuert.notify.listener._STOP", 2 * WAIT)


class NewRedisParty(Protocol):
    """Makes a party on Redis."""

    def __call__(
        self,
        server: str | redis.Redis,
        *,
        timeouts: ListenerTimeouts | None = None,
        namespace: str | None = None,
    ) -> Party: ...


@pytest.fixture
def namespace() -> str:
    """A namespace of the test's own."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def new_redis_party(namespace: str) -> Iterator[NewRedisParty]:
    """Makes parties on Redis, by URL or client; by default all of one namespace."""
    parties: list[Party] = []
    own = namespace

    def new(
        server: str | redis.Redis, *, timeouts: ListenerTimeouts | None = None, namespace: str | None = None
    ) -> Party:
        parties.append(Party(RedisNotify(server, namespace=namespace or own, timeouts=timeouts)))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()
