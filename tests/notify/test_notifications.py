"""Notifications of starts: sent after the start, and never waited for by it."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, migrations
from queuert.state.postgres import PostgresState
from tests.conftest import StartPostgres
from tests.notify.support import WAIT, wiretap

JOBS = "queuert_jobs"
HOUR = 3600.0

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)


@pytest.mark.usefixtures("unhurried_close")
def test_starts_one_upon_the_other_are_notified_together(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.notify.postgres.MIN_INTERVAL", HOUR)
    monkeypatch.setattr("queuert.notify.postgres.MAX_INTERVAL", HOUR)
    with wiretap(dsn, JOBS) as tap:
        with Client(PostgresState(dsn), JOB_TYPES) as client:
            client.start_chain(work, 0)
            assert [notice.payload for notice in tap.connection.notifies(timeout=WAIT, stop_after=1)] == ["work"]
            for number in range(50):
                client.start_chain(work, number)
            tap.notify(JOBS, "first")
            assert tap.texts_until("first") == []
        # Closed: what had waited was sent at once.
        tap.notify(JOBS, "last")
        assert tap.texts_until("last") == ["work"]


def test_start_does_not_wait_for_the_lock_of_all_that_notify(private_postgres: StartPostgres) -> None:
    """A commit that waits for a standby holds it. The start does not wait for that, nor does it fail."""
    settings: dict[str, str | int] = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    dsn = private_postgres(durable=False, settings=settings).dsn()
    migrations.upgrade(dsn)
    with (
        closing(psycopg.connect(dsn, autocommit=True)) as holder,
        Client(PostgresState(dsn), JOB_TYPES) as client,
        wiretap(dsn, JOBS) as tap,
    ):
        thread = threading.Thread(target=_notify_for_standbys, args=[holder])
        thread.start()
        try:
            while not tap.connection.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchall():
                pass
            chain = client.start_chain(work, 1)
            assert client.get_chain(chain.id).id == chain.id
        finally:
            holder.cancel_safe()
            thread.join(WAIT)
        assert [notice.payload for notice in tap.connection.notifies(timeout=WAIT, stop_after=2)] == ["holds", "work"]


def _notify_for_standbys(holder: psycopg.Connection[Any]) -> None:
    # Cancelled, it is committed here, and says so by a warning.
    with holder.transaction():
        holder.execute("SET LOCAL synchronous_commit = on")
        holder.execute("CREATE TABLE written ()")
        holder.execute("NOTIFY queuert_jobs, 'holds'")
