"""Where behaviours are shown: on each store, for each mode of client, and with each kind of notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from queuert import AsyncClient, Client, JobTypes, PostgresState, migrations
from queuert.ids import new_id
from queuert.notify.in_process import InProcessNotify
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from tests.behaviours.support import QUICK, CallerHarness
from tests.support.harness import Harness, NoNotifications
from tests.support.job_types import JOB_TYPES
from tests.support.waiting import WAIT

OpenState = Callable[[str], StateAdapter]


@pytest.fixture(autouse=True)
def _client_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits polls often without notifications, and never again with them."""
    for mode in ("async", "sync"):
        monkeypatch.setattr(f"queuert.client.{mode}_waiting.POLL_WITHOUT_NOTIFY", QUICK)
        monkeypatch.setattr(f"queuert.client.{mode}_waiting.POLL_WITH_NOTIFY", 3600.0)


@pytest.fixture(autouse=True)
def _worker_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops gives up what is slow. Here nothing hangs: all that it does last is done, however long."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)
    monkeypatch.setattr("queuert.worker.leases._STOP_TIMEOUT", WAIT)


def _postgres(request: pytest.FixtureRequest) -> OpenState:
    dsn: str = request.getfixturevalue("dsn")

    def open_state(name: str) -> StateAdapter:
        if name == "main":
            return PostgresState(dsn)
        migrations.upgrade(dsn, schema=name)
        return PostgresState(dsn, schema=name)

    return open_state


def _redis(request: pytest.FixtureRequest) -> OpenState:
    url: str = request.getfixturevalue("redis_url")
    own = new_id()
    return lambda name: RedisState(url, namespace=f"{own}-{name}")


def _sqlite(request: pytest.FixtureRequest) -> OpenState:
    directory: Path = request.getfixturevalue("tmp_path")
    return lambda name: SQLiteState(directory / f"{name}.db")


STORES = {"postgres": _postgres, "redis": _redis, "sqlite": _sqlite}


class NewHarness(Protocol):
    """Makes a harness on a schema, a namespace or a file of this name; it is closed when the test ends."""

    def __call__(self, job_types: JobTypes = JOB_TYPES, *, name: str = "main") -> Harness: ...


@pytest.fixture(params=STORES)
def open_state(request: pytest.FixtureRequest) -> OpenState:
    """Each store: a function that opens a schema, a namespace or a file by its name."""
    return STORES[request.param](request)


@pytest.fixture
async def new_harness(open_state: OpenState) -> AsyncIterator[NewHarness]:
    """Makes harnesses on each store, such as with other job types, or several."""
    made: list[Harness] = []

    def new(job_types: JobTypes = JOB_TYPES, *, name: str = "main") -> Harness:
        made.append(Harness(open_state(name), job_types=job_types, client_per_worker=True))
        return made[-1]

    yield new
    for harness in made:
        await harness.close()


@pytest.fixture
def harness(new_harness: NewHarness) -> Harness:
    """A client and workers on each store."""
    return new_harness()


@pytest.fixture(params=[AsyncClient, Client], ids=["async", "sync"])
def mode(request: pytest.FixtureRequest) -> Any:
    """The class of the caller's client."""
    return request.param


@pytest.fixture
async def caller_harness(dsn: str, mode: type[AsyncClient] | type[Client]) -> AsyncIterator[CallerHarness]:
    """On Postgres, a caller async and sync; notifications stay within the process."""
    harness = CallerHarness(dsn, mode=mode, notify=InProcessNotify())
    yield harness
    await harness.close()


@pytest.fixture(params=["postgres", "in process", "none"])
async def notify_harness(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[CallerHarness]:
    """On Postgres, with each kind of notifications, and without any."""
    notify = {"postgres": None, "in process": InProcessNotify(), "none": NoNotifications()}[request.param]
    harness = CallerHarness(dsn, notify=notify, poll_interval=QUICK if request.param == "none" else None)
    yield harness
    await harness.close()
