"""The stores of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuert import PostgresState
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState


@pytest.fixture(params=["postgres", "redis", "sqlite", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> StateAdapter:
    """Each store."""
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState(tmp_path / "queue.db") if request.param == "sqlite" else SQLiteState()
