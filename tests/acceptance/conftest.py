"""Each acceptance test runs on every store."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from queuert import PostgresState, migrations
from queuert.ids import new_id
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from tests.acceptance.support import WAIT, Ground

Make = Callable[[str], StateAdapter]


def _postgres(request: pytest.FixtureRequest) -> Make:
    dsn: str = request.getfixturevalue("dsn")

    def make(place: str) -> StateAdapter:
        if place == "main":
            return PostgresState(dsn)
        migrations.upgrade(dsn, schema=place)
        return PostgresState(dsn, schema=place)

    return make


def _redis(request: pytest.FixtureRequest) -> Make:
    url: str = request.getfixturevalue("redis_url")
    own = new_id()
    return lambda place: RedisState(url, namespace=f"{own}-{place}")


def _sqlite(request: pytest.FixtureRequest) -> Make:
    directory: Path = request.getfixturevalue("tmp_path")
    return lambda place: SQLiteState(directory / f"{place}.db")


STORES = {"postgres": _postgres, "redis": _redis, "sqlite": _sqlite}


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a chain looks often without notifications, and with them never again by himself."""
    for mode in ("async", "sync"):
        monkeypatch.setattr(f"queuert.client.{mode}_waiting.POLL_WITHOUT_NOTIFY", 0.05)
        monkeypatch.setattr(f"queuert.client.{mode}_waiting.POLL_WITH_NOTIFY", 3600.0)


@pytest.fixture(autouse=True)
def _timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops gives up what is slow. Here nothing hangs: all that it does last is done, however long."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)
    monkeypatch.setattr("queuert.worker.leases._STOP_TIMEOUT", WAIT)


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes the stores of a test by the names of their places."""
    return STORES[request.param](request)


@pytest.fixture
async def ground(make: Make) -> AsyncIterator[Ground]:
    """Clients and workers on one store."""
    ground = Ground(make)
    yield ground
    await ground.close()
