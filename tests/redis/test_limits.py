"""Rates on Redis: what is counted for a window stays for as long as the window, and no longer."""

from __future__ import annotations

import pytest

from queuert.ids import new_id, new_token
from queuert.limits import Limits, Rate
from queuert.state.redis import RedisState
from queuert.state.types import ClaimRequest, NewJob
from tests.redis.harness import RedisHarness


@pytest.mark.parametrize("per", [5.0, 3600.0])
async def test_starts_are_remembered_for_the_whole_window(harness: RedisHarness, per: float) -> None:
    """Also of a key whose jobs stay away meanwhile; then its memory is free."""
    store = RedisState(harness.url, namespace=harness.namespace).sync_store(max_connections=1)
    store.open()
    try:
        store.start_jobs([NewJob(new_id(), "work", "1", limit_key=key) for key in ("a", "b", None)])
        limits = {"work": Limits(rate=Rate(1, per=per))}
        assert len(store.claim(ClaimRequest({"work": 60.0}, 3, "holder", new_token(), limits))) == 3
    finally:
        store.close()
    kept = [harness.redis.pttl(key) / 1000 for key in harness.redis.keys(harness.key("rate:*"))]
    assert len(kept) == 3
    assert all(per < seconds <= per + 1 for seconds in kept)
