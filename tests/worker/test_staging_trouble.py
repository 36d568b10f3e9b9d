"""Staging that a worker cannot tend is told of once, until it goes well again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuert.errors import StateError
from queuert.observability.events import StagingCleanupFailed
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import StagingCleanup
from queuert.worker import maintenance
from tests.worker.support import Stage, echo, in_time, number


async def test_each_trouble_is_reported_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST", "_BETWEEN_PAGES", "SWEEP_EVERY", "STAGING_EVERY"):
        monkeypatch.setattr(maintenance, name, 0.0)
    looks: Iterator[str | None] = iter(["full", "full", "forbidden", None, "forbidden", "the last"])

    async def tend(store: AsyncPostgresStore) -> StagingCleanup:
        trouble = next(looks, None)
        if trouble is not None:
            raise StateError(trouble)
        return StagingCleanup()

    monkeypatch.setattr(AsyncPostgresStore, "clean_staging", tend)
    stage.handles(number, echo)
    async with stage.worker():
        await in_time(stage.log.wait_for(StagingCleanupFailed, error="the last"))
    reported = [one.error for one in stage.log.of(StagingCleanupFailed)]
    assert reported == ["full", "forbidden", "forbidden", "the last"]
