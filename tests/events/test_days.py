"""The days of the log: made ahead, dropped when they are old, by one at a time, without waiting for others for long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from queuert.errors import StateError
from queuert.event_log import EventLogMaintenance
from queuert.state.postgres import PostgresState, event_log
from queuert.state.postgres.event_log import Step, Task
from queuert.state.types import NewJob
from tests.support.addresses import password_of
from tests.support.store_harness import StoreHarness, opened

Patch = pytest.MonkeyPatch

DAY = timedelta(days=1)
KEEP = 14


@pytest.fixture
def today(harness: StoreHarness) -> date:
    """By the server's clock; tomorrow in the last minutes of a day, when it is too late to make the table of that."""
    found: datetime = harness.value("SELECT clock_timestamp() + interval '10 minutes'")
    return found.astimezone(UTC).date()


def days(harness: StoreHarness) -> list[date]:
    return [one.day for one in harness.store.get_event_log().partitions if one.day is not None]


def drop(harness: StoreHarness, *gone: date) -> None:
    for day in gone:
        harness.sql.execute(f"DROP TABLE queuert.job_event_{day:%Y%m%d}".encode())


def make(harness: StoreHarness, day: date, *, filled: bool = True) -> None:
    for statement in Step(Task.MAKE, day).statements("queuert"):
        harness.sql.execute(statement)
    if filled:
        harness.write_event(f"{day} 12:00:00+00")


def events(harness: StoreHarness, table: str = "job_event") -> int:
    count: int = harness.value(f"SELECT count(*) FROM queuert.{table}")
    return count


def test_the_migration_makes_some(harness: StoreHarness) -> None:
    log = harness.store.get_event_log()
    migrated: date = harness.value("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date")
    assert days(harness)[1:3] == [migrated + DAY, migrated + 2 * DAY]
    assert log.partitions[-1].day is None
    assert all(one.size > 0 for one in log.partitions)
    harness.start("a")
    assert events(harness, "job_event_default") == 0


def test_what_is_missing_is_made(harness: StoreHarness, today: date) -> None:
    """Only what lies in the future. It takes what happens then, in the same columns and with the same index."""
    drop(harness, *days(harness))
    done = harness.store.maintain_event_log()
    assert done.made == (today + DAY, today + 2 * DAY, today + 3 * DAY)
    assert days(harness) == list(done.made)
    for day in done.made:
        harness.write_event(f"{day} 00:00:00+00")
        harness.write_event(f"{day} 23:59:59.999999+00")
        assert events(harness, f"job_event_{day:%Y%m%d}") == 2
    indexes = harness.sql.execute(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'queuert.job_event_order'::regclass"
    ).fetchone()
    assert indexes == (len(done.made) + 1,)
    assert harness.store.maintain_event_log() == EventLogMaintenance()


def test_an_event_always_finds_room(harness: StoreHarness, today: date) -> None:
    """Without days, and on days that nobody has foreseen, it goes to the default partition."""
    drop(harness, *days(harness))
    harness.start("a")
    harness.write_event("2199-01-01")
    harness.write_event("1999-01-01")
    assert events(harness, "job_event_default") == 3


def test_old_days_go(harness: StoreHarness, today: date) -> None:
    """What is kept is kept to its last moment: a day is old when all of it is."""
    old, older, kept = today - (KEEP + 2) * DAY, today - (KEEP + 400) * DAY, today - (KEEP - 1) * DAY
    for day in (old, older, kept):
        make(harness, day)
    done = harness.store.maintain_event_log()
    assert done.dropped == (older, old)
    assert kept in days(harness)
    assert events(harness) == 1
    harness.store.set_event_retention(1)
    assert harness.store.maintain_event_log().dropped == (kept,)


def test_old_events_without_a_day_go(harness: StoreHarness, today: date, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number at a time, the oldest first; what is younger stays."""
    monkeypatch.setattr(event_log, "CHUNK", 2)
    for number in range(5):
        harness.write_event(f"{today - (KEEP + 2 + number) * DAY} 12:00:00+00")
    harness.write_event(f"{today - (KEEP - 2) * DAY} 12:00:00+00", job_id="younger")
    assert harness.store.maintain_event_log().deleted == 5
    assert harness.sql.execute("SELECT job_id FROM queuert.event").fetchall() == [("younger",)]
    assert harness.store.maintain_event_log() == EventLogMaintenance()


def test_maintenance_says_whether_old_events_without_a_day_are_left(
    harness: StoreHarness, today: date, monkeypatch: Patch
) -> None:
    """What one call does is bounded; whoever wants all of it done calls again."""
    monkeypatch.setattr(event_log, "CHUNK", 2)
    monkeypatch.setattr(event_log, "STEPS", 4)
    for _ in range(9):
        harness.write_event(f"{today - (KEEP + 2) * DAY} 12:00:00+00")
    done = harness.store.maintain_event_log()
    assert (done.deleted, done.more) == (8, True)
    done = harness.store.maintain_event_log()
    assert (done.deleted, done.more) == (1, False)


def test_maintenance_says_whether_old_days_are_left(harness: StoreHarness, today: date, monkeypatch: Patch) -> None:
    """Each old day is emptied, and then dropped."""
    harness.store.maintain_event_log()
    monkeypatch.setattr(event_log, "STEPS", 2)
    old = [today - (KEEP + 2 + number) * DAY for number in range(2)]
    for day in old:
        make(harness, day)
    done = harness.store.maintain_event_log()
    assert (done.dropped, done.more) == ((old[1],), True)
    assert harness.store.maintain_event_log().dropped == (old[0],)
    assert not harness.store.maintain_event_log().more


def test_eight_at_once(harness: StoreHarness, today: date) -> None:
    """They do it once between them, and none of them fails."""
    drop(harness, *days(harness))
    old = [today - (KEEP + 2 + number) * DAY for number in range(5)]
    for day in old:
        make(harness, day)
    stores = [opened(harness.dsn) for _ in range(8)]
    together = threading.Barrier(8)

    def tend(number: int) -> EventLogMaintenance:
        together.wait(30)
        return stores[number].maintain_event_log()

    try:
        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(tend, range(8)))
    finally:
        for store in stores:
            store.close()
    rest = harness.store.maintain_event_log()
    made = [day for one in (*done, rest) for day in one.made]
    dropped = [day for one in (*done, rest) for day in one.dropped]
    assert sorted(made) == days(harness) == [today + DAY, today + 2 * DAY, today + 3 * DAY]
    assert sorted(dropped) == sorted(old)


def test_a_long_transaction_is_not_waited_for(harness: StoreHarness, today: date) -> None:
    """The old day is emptied all the same, and goes when the transaction has; the rest is done meanwhile."""
    old = today - (KEEP + 2) * DAY
    harness.store.maintain_event_log()
    make(harness, old)
    missing = days(harness)[-1]
    assert missing == today + 3 * DAY
    drop(harness, missing)
    with psycopg.connect(harness.dsn) as writer:
        harness.store.start_jobs([NewJob("a", "work", "1")], connection=writer)
        done = harness.store.maintain_event_log()
        assert (done.made, done.dropped, done.postponed) == ((missing,), (), (old,))
        assert harness.value(f"SELECT pg_relation_size('queuert.job_event_{old:%Y%m%d}')") == 0
    assert harness.store.maintain_event_log().dropped == (old,)


def test_who_comes_second_does_nothing(harness: StoreHarness) -> None:
    drop(harness, *days(harness))
    lock = PostgresState(harness.dsn).sync_store()._sql.try_maintenance_lock
    with psycopg.connect(harness.dsn) as first:
        row = first.execute(lock).fetchone()
        assert row is not None
        assert row[0] is True
        assert harness.store.maintain_event_log() == EventLogMaintenance()
    assert len(harness.store.maintain_event_log().made) == 3


def test_a_day_that_began_without_a_table(harness: StoreHarness, today: date) -> None:
    """It cannot be made any more: it is postponed, and the others are made."""
    drop(harness, *days(harness))
    harness.write_event(f"{today + 2 * DAY} 12:00:00+00")
    done = harness.store.maintain_event_log()
    assert (done.made, done.postponed) == ((today + DAY, today + 3 * DAY), (today + 2 * DAY,))


def test_a_role_that_may_only_write(harness: StoreHarness) -> None:
    """It can do all that jobs need; that it cannot look after the days is said."""
    drop(harness, *days(harness))
    role = sql.Identifier(f"writer_{harness.value('SELECT current_database()')}")
    harness.sql.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password_of(harness.dsn)))
    try:
        for grant in (
            "GRANT USAGE ON SCHEMA queuert TO {}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuert TO {}",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuert TO {}",
        ):
            harness.sql.execute(sql.SQL(grant).format(role))
        address = make_conninfo(harness.dsn, user=role._obj[0])
        store = opened(address)
        try:
            harness.store = store
            harness.start("a")
            with pytest.raises(StateError, match=r"permission denied|must be owner"):
                store.maintain_event_log()
        finally:
            store.close()
        assert events(harness, "job_event_default") == 1
    finally:
        harness.sql.execute(sql.SQL("DROP OWNED BY {}").format(role))
        harness.sql.execute(sql.SQL("DROP ROLE {}").format(role))
