"""The reaper, when the store does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from queuert.errors import StateError, StateUnavailableError
from queuert.notify.adapter import Topic
from queuert.observability.adapter import Observers
from queuert.policies import RetryPolicy
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ReapRequest, ReapResult
from queuert.worker.reaper import Reaper
from queuert.worker.telemetry import ActivityCounter
from tests.support.harness import NoNotifications, PostgresHarness
from tests.support.job_types import number, text


class Silent:
    """A store that reaps, and whose answer may be lost."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    async def reap(self, request: ReapRequest) -> ReapResult:
        if not self._answers:
            raise StateUnavailableError("server closed the connection unexpectedly")
        return ReapResult([], None)


class Heard(NoNotifications):
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[Topic, set[str]]] = []

    def publish(self, topic: Topic, keys: Iterable[str] | None) -> None:
        self.published.append((topic, set(keys or ())))


def a_reaper(store: Any, notify: Heard) -> Reaper:
    return Reaper(
        store,
        notify,
        {"resize": RetryPolicy(), "publish": RetryPolicy()},
        shortest_lease=60.0,
        worker="worker",
        observers=Observers(),
        activity=ActivityCounter(),
    )


async def test_jobs_whose_reaping_was_not_answered_are_announced() -> None:
    """Nobody else does: the next round finds their leases gone, and a worker would wait for its next poll."""
    notify = Heard()
    with pytest.raises(StateUnavailableError):
        await a_reaper(Silent(answers=False), notify)._step()
    assert notify.published == [(Topic.JOBS, {"resize", "publish"})]


async def test_nothing_is_announced_if_nothing_was_reaped() -> None:
    notify = Heard()
    await a_reaper(Silent(answers=True), notify)._step()
    assert notify.published == []


async def test_what_a_round_has_reaped_is_reported_though_the_rest_of_it_fails(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are committed by then: nobody else would report and announce them."""
    await harness.client.start_chain(number, 1)
    await harness.client.start_chain(text, "a")
    for job_type in (number, text):
        await harness.claim_and_die(job_type, seconds=3600.0)
    harness.rows("update queuert.job set lease_expires_at = now() - interval '1 second' returning id")

    async def fails(*_: Any) -> None:
        raise StateError("deadlock detected")

    monkeypatch.setattr(AsyncPostgresStore, "_fail_expired", fails)
    request = ReapRequest({"number": RetryPolicy(max_attempts=1), "text": RetryPolicy()}, 100)
    store = harness.state.async_store(max_connections=1)
    await store.open()
    try:
        result = await store.reap(request)
        assert ([job.type for job in result.reaped], result.next_expiry) == (["text"], 0.0)
        with pytest.raises(StateError, match="deadlock"):
            await store.reap(request)
    finally:
        await store.aclose()
