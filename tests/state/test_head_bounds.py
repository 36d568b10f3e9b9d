"""Claims while an old snapshot keeps the entries of all that was claimed: they begin where the last look ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from queuert.ids import new_id, new_token
from queuert.state.postgres import PostgresState, claiming
from queuert.state.postgres.claiming import HEAD, ClaimCursors
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest, NewJob
from tests.state.plans import explain

LOOKS = 4
SQL = Statements("queuert")


def request(limit: int = 10) -> ClaimRequest:
    return ClaimRequest({"work": 60.0}, limit, "me", new_token())


def job(priority: int = 0) -> NewJob:
    return NewJob(id=new_id(), type="work", input="1", priority=priority)


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def always_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts as slow, and none at the head is due before the test is over."""
    monkeypatch.setattr(claiming, "SLOW", -1.0)
    monkeypatch.setattr(claiming, "_SHARE", 1e9)


def take(store: PostgresStore, limit: int = 10) -> list[ClaimedJob]:
    return store.claim(request(limit))


class TestPlaces:
    def claimed(self, store: PostgresStore, count: int) -> list[ClaimedJob]:
        store.start_jobs([job() for _ in range(count)])
        return take(store, count)

    def test_all_looks_are_at_the_head_while_they_are_quick(self, store: PostgresStore) -> None:
        bounds = ClaimCursors()
        for _ in range(2 * LOOKS):
            bounds.note(self.claimed(store, 1), 0.001, at_head=True)
            assert bounds.places(["work"]) is None

    def test_one_slow_look_is_none(self, store: PostgresStore) -> None:
        bounds = ClaimCursors()
        for seconds in (0.1, 0.1, 0.1, 0.001, 0.1):
            bounds.note(self.claimed(store, 1), seconds, at_head=True)
            assert bounds.places(["work"]) is None

    def test_slow_ones_in_a_row_set_a_place_for_each_type(self, store: PostgresStore) -> None:
        bounds = ClaimCursors()
        jobs = self.claimed(store, 3)
        for _ in range(LOOKS):
            bounds.note(jobs, 0.1, at_head=True)
        assert bounds.places(["other", "work"]) == [HEAD, (0, max(one.scheduled_at for one in jobs))]

    def test_a_look_at_the_head_is_due_after_a_while(
        self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bounds = ClaimCursors()
        looks = [self.claimed(store, 1) for _ in range(LOOKS)]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        for jobs in looks:
            bounds.note(jobs, 0.1, at_head=True)
        monkeypatch.setattr(time, "monotonic", lambda: now + 3.0)
        assert bounds.places(["work"]) is not None
        monkeypatch.setattr(time, "monotonic", lambda: now + 4.1)
        assert bounds.places(["work"]) is None

    def test_quick_again(self, store: PostgresStore) -> None:
        bounds = ClaimCursors()
        for seconds in (*[0.1] * LOOKS, 0.001):
            bounds.note(self.claimed(store, 1), seconds, at_head=True)
        assert bounds.places(["work"]) is None


def test_a_look_from_its_place_reads_little_however_much_was_claimed(store: PostgresStore, dsn: str) -> None:
    store.start_jobs([job() for _ in range(3_000)])
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as connection:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from queuert.job")
        last = take(store, 2_900)[-1]
        connection.execute("vacuum queuert.job")

        def pages(places: list[claiming.Place] | None) -> int:
            values = claiming.claim(request(1), places)
            plan = explain(connection, SQL.claim, values, "force_generic_plan")
            assert plan.indexes() >= {"job_ready", "job_scheduled"}
            return plan.buffers()

        from_head, from_place = pages(None), pages([(0, last.scheduled_at)])
    assert from_place < from_head / 3


def test_each_job_is_claimed_once_whatever_the_places(store: PostgresStore, always_slow: None) -> None:
    store.start_jobs([job() for _ in range(200)])
    found = [one.id for _ in range(20) for one in take(store)]
    assert len(found) == len(set(found)) == 200
    assert take(store) == []


@pytest.mark.parametrize("before", ["a higher priority", "a late commit", "released"])
def test_what_becomes_ready_before_the_place_is_found_when_nothing_else_is(
    store: PostgresStore, dsn: str, always_slow: None, before: str
) -> None:
    with psycopg.connect(dsn) as late:
        early = job()
        if before == "a late commit":
            store.start_jobs([early], connection=late)
        store.start_jobs([job() for _ in range(60)])
        claimed = [one for _ in range(LOOKS + 1) for one in take(store)]
        if before == "released":
            store.release([claimed[0].lease])
            wanted = claimed[0].id
        elif before == "a higher priority":
            early = job(priority=5)
            store.start_jobs([early])
            wanted = early.id
        else:
            late.commit()
            wanted = early.id
    assert wanted not in {one.id for one in take(store)}
    assert {one.id for one in take(store)} == {wanted}


def test_a_place_is_forgotten_once_looks_are_quick(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "SLOW", -1.0)
    monkeypatch.setattr(claiming, "_SHARE", 0.0)
    store.start_jobs([job() for _ in range(80)])
    for _ in range(LOOKS + 1):
        take(store)
    monkeypatch.setattr(claiming, "SLOW", 1e9)
    urgent = job(priority=5)
    store.start_jobs([urgent])
    assert take(store)[0].id == urgent.id
