"""The event log of a file: its retention, its cursors on other files, and files of the version before."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert import Client, JobType, JobTypes
from queuert.errors import EventsLostError
from queuert.event_log import EventFilter, JobEvent
from queuert.state.paging import PageRequest
from queuert.state.sqlite import SQLiteState, event_log
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.types import NewJob

EVERYTHING = EventFilter()
number = JobType("number", input=int, output=int)
DAY = 86_400_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteState(path).sync_store()
    store.open()
    yield store
    store.close()


def start(store: SQLiteStore, *ids: str) -> None:
    store.start_jobs([NewJob(id, "work", "1", id_chosen=True) for id in ids])


def ids_after(store: SQLiteStore, cursor: str | None) -> list[str]:
    page = store.list_events(EVERYTHING, PageRequest(1_000, cursor, oldest_first=True))
    return [event.job_id for event in page]


def age(path: Path, days: int, *ids: str) -> None:
    """Move events into the past."""
    with sqlite3.connect(path) as connection:
        for id in ids:
            connection.execute(
                "UPDATE queuert_event SET happened_at = happened_at - ? WHERE job_id = ?", [days * DAY, id]
            )
    connection.close()


def lost(store: SQLiteStore, cursor: str | None) -> EventsLostError:
    with pytest.raises(EventsLostError) as caught:
        ids_after(store, cursor)
    return caught.value


def test_old_events_are_deleted_and_readers_get_an_error(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "CHUNK", 2)
    beginning = store.event_log_end().cursor
    start(store, "a", "b", "c")
    start(store, "d", "e")
    first, *_, last_old, _, newest = store.list_events(EVERYTHING, PageRequest(oldest_first=True))
    assert store.maintain_event_log().deleted == 0
    age(path, 16, "a", "b", "c")
    done = store.maintain_event_log()
    assert (done.deleted, done.more) == (2, True)
    done = store.maintain_event_log()
    assert (done.deleted, done.more) == (1, False)
    assert ids_after(store, None) == ["d", "e"]
    for cursor in (beginning, first.cursor):
        error = lost(store, cursor)
        assert "retention" in str(error)
        assert ids_after(store, error.cursor) == ["d", "e"]
    assert ids_after(store, last_old.cursor) == ["d", "e"]
    assert list(store.list_events(EVERYTHING, PageRequest(cursor=first.cursor))) == []
    # Numbers are not used again, even if the log is empty.
    age(path, 16, "d", "e")
    while store.maintain_event_log().deleted:
        pass
    end = store.event_log_end().cursor
    start(store, "f")
    assert ids_after(store, newest.cursor) == ids_after(store, end) == ["f"]


def test_another_file_is_an_error(store: SQLiteStore, tmp_path: Path) -> None:
    start(store, "a")
    [event] = store.list_events(EVERYTHING, PageRequest())
    other = SQLiteState(tmp_path / "other.db").sync_store()
    other.open()
    try:
        start(other, "x", "y")
        error = lost(other, event.cursor)
        assert "another file" in str(error)
        assert ids_after(other, error.cursor) == ["x", "y"]
    finally:
        other.close()


@pytest.mark.parametrize("written_since", [0, 1, 5])
def test_an_older_copy_of_the_file_is_an_error(path: Path, tmp_path: Path, written_since: int) -> None:
    """However much was written to it since: its new events have the numbers of events that were read."""
    copy = tmp_path / "copy.db"
    store = SQLiteState(path).sync_store()
    store.open()
    start(store, "a")
    kept = store.event_log_end().cursor
    store.close()
    shutil.copy(path, copy)
    store.open()
    start(store, "b", "c")
    cursor = store.event_log_end().cursor
    store.close()
    older = SQLiteState(copy).sync_store()
    older.open()
    try:
        names = [f"new {place}" for place in range(written_since)]
        start(older, *names)
        assert "older copy" in str(lost(older, cursor))
        assert ids_after(older, kept) == names
    finally:
        older.close()


def test_a_page_reads_so_many_events_and_no_more(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LOOKED_AT", 4)
    start(store, *"abcdefghij")
    for oldest_first, id in ((True, "j"), (False, "a")):
        filter = EventFilter(chain_id=id)
        page = store.list_events(filter, PageRequest(oldest_first=oldest_first))
        assert page.items == ()
        found: list[JobEvent] = []
        while page.next_cursor is not None:
            page = store.list_events(filter, PageRequest(cursor=page.next_cursor, oldest_first=oldest_first))
            found += page.items
        assert [event.job_id for event in found] == [id]


def test_a_file_of_the_version_before_gets_a_log(path: Path) -> None:
    """Its jobs are there, and what happens to them from now on is logged."""
    with Client(SQLiteState(path), JobTypes(number)) as client:
        chain = client.start_chain(number, 1)
    with sqlite3.connect(path) as connection:
        webhooks = ("queuert_webhook_record", "queuert_webhook_attempt")
        for table in ("queuert_type_trait", "queuert_event", "queuert_event_level", "queuert_event_log", *webhooks):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE queuert_job_step DROP COLUMN started_at")
        connection.execute("DROP VIEW queuert_chain")
        connection.execute("CREATE VIEW queuert_chain AS SELECT id FROM queuert_job")
        connection.execute("ALTER TABLE queuert_job DROP COLUMN stale_at")
        connection.execute("UPDATE queuert_schema SET version = 12")
    connection.close()
    with Client(SQLiteState(path), JobTypes(number)) as client:
        assert list(client.list_events()) == []
        client.cancel_chain(chain, reason="no")
        assert [event.kind for event in client.list_events()] == ["cancelled"]


def test_the_events_of_a_callers_transaction_commit_with_it(store: SQLiteStore, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for end, expected in (("ROLLBACK", []), ("COMMIT", ["a"])):
        connection.execute("BEGIN IMMEDIATE")
        store.start_jobs([NewJob("a", "work", "1", id_chosen=True)], connection=connection)
        assert ids_after(store, None) == []
        connection.execute(end)
        assert ids_after(store, None) == expected
    connection.close()
