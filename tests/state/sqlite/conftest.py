"""Files and states for a test, closed when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert.state.sqlite import SQLiteState
from tests.state.sqlite.ground import Ground


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file can be."""
    return tmp_path / "jobs.db"


@pytest.fixture(params=["file", "memory"])
def state(request: pytest.FixtureRequest) -> Iterator[SQLiteState]:
    """A fresh state: in a file, and in memory."""
    where = request.getfixturevalue("path") if request.param == "file" else ":memory:"
    state = SQLiteState(where, answer_timeout=20.0, synchronous="normal")
    yield state
    state.close()


@pytest.fixture
def ground(path: Path) -> Iterator[Ground]:
    """A file with a witness. Afterwards nothing has happened that must never happen."""
    store = SQLiteState(path).sync_store()
    store.open()
    store.close()
    ground = Ground(path)
    try:
        yield ground
        ground.witness.check()
    finally:
        ground.close()
