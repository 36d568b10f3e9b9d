"""What the tests of deliveries share: a client and workers on each store, and a receiver on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuert import PostgresState
from queuert.ids import new_id
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from tests.support.receiver import Receiver, receiving
from tests.webhooks.deliveries import Deliveries


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> StateAdapter:
    """Each store."""
    if request.param == "sqlite":
        return SQLiteState(tmp_path / "jobs.db")
    if request.param == "redis":
        return RedisState(request.getfixturevalue("redis_url"), namespace=new_id())
    return PostgresState(request.getfixturevalue("dsn"))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that accepts all."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def deliveries(state: StateAdapter, receiver: Receiver) -> AsyncIterator[Deliveries]:
    """A client and its workers, which deliver to the receiver."""
    deliveries = Deliveries(state, receiver)
    yield deliveries
    await deliveries.close()
