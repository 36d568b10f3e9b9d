"""The worlds in which behaviours are shown: for each mode of client, and for each carrier of notifications."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, Client
from tests.behaviours.support import QUICK, World


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a chain looks often without notifications, and with them never again by himself."""
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITHOUT_NOTIFY", QUICK)
    monkeypatch.setattr("queuert.client.sync_waiting.POLL_WITHOUT_NOTIFY", QUICK)
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITH_NOTIFY", 3600.0)
    monkeypatch.setattr("queuert.client.sync_waiting.POLL_WITH_NOTIFY", 3600.0)


@pytest.fixture(params=[AsyncClient, Client], ids=["async", "sync"])
def mode(request: pytest.FixtureRequest) -> Any:
    """The class of the caller's client."""
    return request.param


@pytest.fixture
async def world(dsn: str, mode: type[AsyncClient] | type[Client]) -> AsyncIterator[World]:
    """A caller sync or async; notifications are carried in the process."""
    world = World(dsn, mode=mode, notifications="in process")
    yield world
    await world.close()


@pytest.fixture(params=["postgres", "in process", "none"])
async def wired(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[World]:
    """An asynchronous caller, with each carrier of notifications, and without any."""
    world = World(dsn, notifications=request.param)
    yield world
    await world.close()
