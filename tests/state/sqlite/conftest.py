"""Files and states for a test, closed when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert.state.sqlite import SQLiteState
from tests.state.sqlite.harness import SQLiteHarness


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
def harness(path: Path) -> Iterator[SQLiteHarness]:
    """A file with a witness. Afterwards nothing has happened that must never happen."""
    store = SQLiteState(path).sync_store()
    store.open()
    store.close()
    harness = SQLiteHarness(path)
    try:
        yield harness
        harness.witness.check()
    finally:
        harness.close()
