"""The measurement of releases. How long they take is not judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.releases import measure


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "stale"])
async def test_each_release_is_measured(tmp_path: Path, stops: bool) -> None:
    """The first one is not."""
    found = await measure(f"sqlite:///{tmp_path}/jobs.db", 2, stops=stops)
    assert len(found) == 2
    assert min(found) > 0
