"""Workers that are killed at any instruction: each step is committed once, each event taken once, each key in order.

``python -m tests.faults.killed_steps`` kills as often as you like.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

KILLS = 15


async def killed(url: str) -> dict[str, object]:
    """Run the program on a database, and return what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.killed_steps", url, str(KILLS), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    out, errors = await process.communicate()
    assert out, errors.decode()
    summary: dict[str, object] = json.loads(out)
    assert (process.returncode, summary["faults"]) == (0, []), summary
    return summary


async def test_on_postgres(dsn: str) -> None:
    assert (await killed(dsn))["kills"] == KILLS


@pytest.mark.quick
async def test_on_sqlite(tmp_path: Path) -> None:
    assert (await killed(str(tmp_path / "jobs.db")))["kills"] == KILLS
