"""What the weakest roles can write by hand, past the library, and how far it reaches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from queuert import PostgresState, migrations
from queuert.schedules import MissedRuns, tick_id
from queuert.state import Store
from queuert.state.postgres.event_log import Step, Task
from queuert.state.postgres.roles import Role
from queuert.state.types import NewJob, ScheduleRecord, StartedJob
from tests.security.conftest import LoginOf

LAST = 2**64 - 2
"""The largest number that a transaction can have."""

EVENT = """
INSERT INTO queuert.job_event ({columns}kind, status, job_id, chain_id, chain_index, type, chain_type, attempt)
VALUES ({values}'created', 'ready', 'x', 'x', 0, 'work', 'work', 0)
"""
FORGED = {"tx": f"'{LAST}'", "seq": "1", "happened_at": "now() - interval '30 days'"}


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


# --- numbers of transactions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.CLIENT, Role.WRITER, Role.WORKER, Role.OPERATOR])
@pytest.mark.parametrize("column", FORGED)
def test_no_role_writes_the_number_or_the_time_of_an_event(login: LoginOf, role: Role, column: str) -> None:
    with psycopg.connect(login(role), autocommit=True) as connection:
        connection.execute(EVENT.format(columns="", values="").encode())
        forged = EVENT.format(columns=f"{column}, ", values=f"{FORGED[column]}, ")
        with pytest.raises(InsufficientPrivilege):
            connection.execute(forged.encode())


def dropped(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT dropped_tx::text FROM queuert.event_log").fetchone()
    assert row is not None
    return int(row[0])


def forge(connection: psycopg.Connection[Any]) -> int:
    """An honest and a forged event of a month ago; the number of the honest one."""
    columns, values = ", ".join(FORGED), ", ".join(FORGED.values())
    connection.execute(EVENT.format(columns=f"{columns}, ", values=f"{values}, ").encode())
    honest = EVENT.format(columns="happened_at, ", values="now() - interval '30 days', ")
    row = connection.execute(f"{honest} RETURNING tx::text".encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("there_is_a_day", [True, False])
def test_retention_does_not_believe_a_number_that_no_transaction_has_had(
    dsn: str, store: Store, there_is_a_day: bool
) -> None:
    """Of a partition that is emptied, and of events without one."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        if there_is_a_day:
            row = owner.execute("SELECT ((now() - interval '30 days') AT TIME ZONE 'UTC')::date").fetchone()
            assert row is not None
            for statement in Step(Task.MAKE, row[0]).statements("queuert"):
                owner.execute(statement)
        honest = forge(owner)
        store.maintain_event_log()
        assert owner.execute("SELECT count(*) FROM queuert.job_event").fetchone() == (0,)
        assert dropped(owner) == honest


@pytest.mark.parametrize("there_is_a_day", [True, False])
def test_retention_takes_back_what_was_believed_before(dsn: str, store: Store, there_is_a_day: bool) -> None:
    with psycopg.connect(dsn, autocommit=True) as owner:
        if there_is_a_day:
            row = owner.execute("SELECT ((now() - interval '30 days') AT TIME ZONE 'UTC')::date").fetchone()
            assert row is not None
            for statement in Step(Task.MAKE, row[0]).statements("queuert"):
                owner.execute(statement)
        owner.execute("UPDATE queuert.event_log SET dropped_tx = %s::text::xid8", [str(LAST)])
        honest = forge(owner)
        store.maintain_event_log()
        assert dropped(owner) == honest


def test_what_was_believed_before_goes_with_the_migration(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn, revision="0008")
    with psycopg.connect(bare_dsn, autocommit=True) as owner:
        owner.execute(EVENT.format(columns="", values="").encode())
        owner.execute("UPDATE queuert.event_log SET dropped_tx = %s::text::xid8", [str(LAST)])
        migrations.upgrade(bare_dsn)
        row = owner.execute("SELECT tx::text FROM queuert.job_event").fetchone()
        assert row is not None
        assert dropped(owner) == int(row[0])


# --- ids of ticks -----------------------------------------------------------------------------------------------------

TICK = datetime(2001, 2, 3, tzinfo=UTC)
UPCOMING = TICK + timedelta(days=1)


def due_schedule(dsn: str, store: Store) -> NewJob:
    """A schedule whose tick has come, and the job of the tick."""
    store.put_schedules([ScheduleRecord("nightly", "work", "{}", None, 86_400.0, "UTC", MissedRuns.ONCE)])
    with psycopg.connect(dsn) as owner:
        owner.execute("UPDATE queuert.schedule SET next_at = %s", [TICK])
    return NewJob(tick_id("nightly", TICK), "work", "{}", id_chosen=True)


def test_a_client_that_takes_the_id_of_a_tick_does_not_cancel_it(granted: str, login: LoginOf) -> None:
    worker, client = (PostgresState(login(role)).sync_store() for role in (Role.WORKER, Role.CLIENT))
    owner = PostgresState(granted).sync_store()
    for one in (worker, client, owner):
        one.open()
    try:
        job = due_schedule(granted, owner)
        client.start_jobs([NewJob(job.id, "harmless", "1", id_chosen=True)])
        started = worker.fire_schedule("nightly", TICK, UPCOMING, [job])
        assert started is not None
        [chain] = started
        assert (chain.type, chain.existing, chain.id != job.id) == ("work", False, True)
        assert [found.type for found in worker.get_jobs([chain.id, job.id]) if found] == ["work", "harmless"]
    finally:
        for one in (worker, client, owner):
            one.close()


@pytest.mark.parametrize("type", ["work", "harmless"])
def test_a_tick_whose_id_is_being_taken_waits_and_is_not_lost(dsn: str, store: Store, type: str) -> None:
    """Whoever takes it has not committed when the tick's statement begins, so that it sees no row, and writes none."""
    job = due_schedule(dsn, store)
    answers: list[list[StartedJob] | None] = []
    firing = threading.Thread(target=lambda: answers.append(store.fire_schedule("nightly", TICK, UPCOMING, [job])))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with psycopg.connect(dsn) as taker, psycopg.connect(dsn, autocommit=True) as look:
        taker.execute(
            """INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, status, input)
               VALUES (%(id)s, %(type)s, %(id)s, %(type)s, 'open', 'ready', '1')""",
            {"id": job.id, "type": type},
        )
        firing.start()
        while look.execute(waiting).fetchone() == (0,):
            assert firing.is_alive()
        taker.commit()
        firing.join(60)
    [started] = answers
    assert started is not None
    [chain] = started
    assert (chain.type, chain.existing, chain.id == job.id) == ("work", type == "work", type == "work")
