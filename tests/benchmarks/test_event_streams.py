"""Subscribers of one web process get each event once: the benchmark, on a few of them."""

from __future__ import annotations

import pytest

from benchmarks.event_streams import measure, web

pytestmark = pytest.mark.timeout(120)


async def test_each_subscriber_gets_each_event_once(dsn: str) -> None:
    with web(dsn) as port:
        found = await measure(dsn, port, subscribers=20, rate=50.0, seconds=0.2, burst=150)
    assert (found["subscribers"], found["burst_events"], found["skipped"], found["twice"]) == (20, 3000, 0, 0)
