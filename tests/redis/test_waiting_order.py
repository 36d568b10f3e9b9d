"""A job that waits keeps its place, whatever is changed of it, unless when it is due or its rank is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queuert.run_at import RunAt
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.types import InputEdit
from queuert.testing.conformance.builders import ask, job

EDIT = {"edit": InputEdit("first", '"edited"')}


@pytest.mark.parametrize("limit_key", [None, "key"], ids=["listed", "keyed"])
@pytest.mark.parametrize(
    ("change", "order"),
    [
        (EDIT, ["first", "second"]),
        ({"priority": 3}, ["first", "second"]),
        ({"run_at": RunAt(delay=0.0)}, ["first", "second"]),
        ({"run_at": RunAt(delay=0.0), "priority": 3, **EDIT}, ["first", "second"]),
        ({"priority": 2}, ["second", "first"]),
        ({"run_at": RunAt(delay=3600.0)}, ["second"]),
    ],
    ids=["input", "same priority", "due already", "all as it was", "worse", "later"],
)
async def test_a_change_leaves_a_ready_job_where_it_is(
    store: AsyncRedisStore, limit_key: str | None, change: dict[str, Any], order: Sequence[str]
) -> None:
    await store.start_jobs([job(id=id, priority=3, limit_key=limit_key) for id in ("first", "second")])
    [changed] = await store.change_waiting_jobs(["first"], **change)
    assert changed.written
    claimed = await store.claim(ask(limit=2))
    assert [one.id for one in claimed] == order
    inputs = {one.id: one.input for one in claimed}
    assert inputs.get("first", "{}") == ('"edited"' if "edit" in change else "{}")
