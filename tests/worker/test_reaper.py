"""The reaper, when the store does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from queuert.errors import StateError, StateUnavailableError
from queuert.notify.adapter import Topic
from queuert.observability.adapter import Observers
from queuert.policies import RetryPolicy
from queuert.state.postgres import PostgresState
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.postgres.rows import ExpiredLease
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ReapedJob, ReapRequest, ReapResult
from queuert.testing.conformance.builders import ask, job
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


@pytest.mark.parametrize("spent", ["others go on", "others are spent"])
def test_jobs_that_cannot_fail_yet_do_not_keep_the_others_from_being_reaped(
    dsn: str, monkeypatch: pytest.MonkeyPatch, spent: str
) -> None:
    """They are as many as a round takes, and have waited longest: their dependents are locked for long."""
    monkeypatch.setattr("queuert.state.postgres.sync_finishing.LOCK_SOON", 0.001)
    store = PostgresState(dsn).sync_store()
    store.open()
    held = [one.id for one in store.start_jobs([job("poison") for _ in range(7)])]
    waiting = [one.id for one in store.start_jobs([job("waits", blockers=[id]) for id in held])]
    others = [one.id for one in store.start_jobs([job("poison" if "are spent" in spent else "work")])]
    claimed = store.claim(ask("poison", "work", limit=20))
    assert {one.id for one in claimed} == {*held, *others}
    request = ReapRequest({"poison": RetryPolicy(max_attempts=1), "work": RetryPolicy()}, limit=3)
    with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as times:
        expire = "UPDATE queuert.job SET lease_expires_at = now() - %s * interval '1 second' WHERE id = ANY (%s)"
        times.execute(expire, (60, held))
        times.execute(expire, (1, others))
        connection.execute("SELECT FROM queuert.job WHERE id = ANY (%s) FOR UPDATE", (waiting,))
        rounds = [store.reap(request) for _ in range(3)]
        assert [one.id for result in rounds for one in result.reaped] == others
        assert [result.next_expiry for result in rounds] == [0.0] * 3
    reaped = [one.id for _ in range(3) for one in store.reap(request).reaped]
    assert sorted(reaped) == sorted(held)
    assert store.reap(request).reaped == []
    store.close()


def test_an_error_of_one_job_does_not_keep_the_others_from_being_reaped(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round tells of those it has reaped, and raises the error if there are none."""
    store = PostgresState(dsn).sync_store()
    store.open()
    bad, good = [one.id for one in store.start_jobs([job(), job()])]
    store.claim(ask())
    fail_expired = PostgresStore._fail_expired

    def fails(store: PostgresStore, connection: Any, lease: ExpiredLease) -> list[ReapedJob]:
        if lease.id == bad:
            raise StateError("a trigger refuses it")
        return fail_expired(store, connection, lease)

    monkeypatch.setattr(PostgresStore, "_fail_expired", fails)
    request = ReapRequest({"work": RetryPolicy(max_attempts=1)})
    with psycopg.connect(dsn, autocommit=True) as times:
        expire = "UPDATE queuert.job SET lease_expires_at = now() - %s * interval '1 second' WHERE id = %s"
        times.execute(expire, (2, bad))
        times.execute(expire, (1, good))
    assert [one.id for one in store.reap(request).reaped] == [good]
    with pytest.raises(StateError, match="trigger"):
        store.reap(request)
    store.close()
