"""Staging that a worker cannot tend is told of once, until it goes well again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuert.errors import StateError
from queuert.observability.events import StagingCleanupFailed
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import StagingCleanup
from queuert.worker import maintenance
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.waiting import in_time


@pytest.mark.quick
async def test_each_trouble_is_reported_once(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MAX_FIRST_PAUSE", "_PAGE_PAUSE", "INTERVAL", "STAGING_INTERVAL"):
        monkeypatch.setattr(maintenance, name, 0.0)
    looks: Iterator[str | None] = iter(["full", "full", "forbidden", None, "forbidden", "the last"])

    async def tend(store: AsyncPostgresStore) -> StagingCleanup:
        trouble = next(looks, None)
        if trouble is not None:
            raise StateError(trouble)
        return StagingCleanup()

    monkeypatch.setattr(AsyncPostgresStore, "clean_staging", tend)
    harness.handles(number, echo)
    async with harness.worker():
        await in_time(harness.log.wait_for(StagingCleanupFailed, error="the last"))
    reported = [one.error for one in harness.log.of(StagingCleanupFailed)]
    assert reported == ["full", "forbidden", "forbidden", "the last"]
