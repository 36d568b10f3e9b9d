"""Files that cannot be used, or not now: each is a typed error, and nothing of theirs is touched."""

from __future__ import annotations

import gc
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from queuert import Client
from queuert.errors import (
    ClosedError,
    ConfigurationError,
    SchemaMissingError,
    StateError,
    StateUnavailableError,
)
from queuert.ids import new_token
from queuert.state import Capability
from queuert.state.named_sections import read_file
from queuert.state.sqlite import SQLiteState, schema
from queuert.state.sqlite.schema import SCHEMA_VERSION
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.types import ClaimRequest
from queuert.testing.conformance.builders import ask, complete, job
from tests.state.sqlite.application import JOB_TYPES, single

_ROOT = Path(__file__).parents[3]


def opened(path: Path, **settings: float) -> SQLiteStore:
    store = SQLiteState(path, synchronous="normal", **settings).sync_store()
    store.open()
    return store


# --- paths ------------------------------------------------------------------------------------------------------------


def test_paths_that_make_no_sense(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "nowhere" / "jobs.db", "nowhere' does not exist"),
        (tmp_path, "got the directory"),
        ("", "must be the path of a file"),
        ("a\0b", "must be the path of a file"),
        ("file:jobs.db?mode=memory", "got the URI"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            SQLiteState(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        SQLiteState(tmp_path / "jobs.db")


def test_a_place_that_cannot_be_written_by_anybody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says; for root, whom it lets write, too."""
    state = SQLiteState(path)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        state.sync_store().open()
    assert not path.exists()


def test_a_directory_that_went_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    state = SQLiteState(folder / "jobs.db")
    folder.rmdir()
    with pytest.raises(ConfigurationError, match="does not exist"):
        state.sync_store().open()


def test_odd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b?c#d%25.db", "ö'\".db", "no suffix"):
        store = opened(Path(name))
        store.start_jobs([job()])
        store.close()
        assert (tmp_path / name).stat().st_size > 0
    assert SQLiteState("relative.db").path == str(tmp_path / "relative.db")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_settings_that_make_no_sense(path: Path, value: float) -> None:
    with pytest.raises(ConfigurationError, match="answer_timeout"):
        SQLiteState(path, answer_timeout=value)
    with pytest.raises(ConfigurationError, match="synchronous"):
        SQLiteState(path, synchronous="off")


# --- what is in the file ---------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"something else altogether\n" * 50)
    with pytest.raises(StateError, match="not a database"):
        opened(path)
    assert path.read_bytes() == b"something else altogether\n" * 50


def test_a_file_that_is_broken(path: Path) -> None:
    store = opened(path)
    ids = [one.id for one in store.start_jobs([job() for _ in range(1_500)])]
    store.close()
    with path.open("r+b") as file:
        pages = path.stat().st_size // 4096
        for page in range(pages // 3, pages):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    store = opened(path)
    with pytest.raises(StateError, match="malformed"):
        store.get_jobs(ids)
    with pytest.raises(StateError, match="malformed"):
        store.claim(ask())
    store.close()


def test_the_applications_tables_are_in_the_same_file(path: Path) -> None:
    """Tables of the same meaning, and a version of its own, stay what they are."""
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE job (id INTEGER); INSERT INTO job VALUES (7); PRAGMA user_version = 42;")
    connection.close()
    store = opened(path)
    store.start_jobs([job()])
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT id FROM job").fetchall() == [(7,)]
    assert connection.execute("PRAGMA user_version").fetchone() == (42,)
    others = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'queuert_%' AND name NOT LIKE 'sqlite_%'"
    assert connection.execute(others).fetchall() == [("job",)]
    connection.close()


@pytest.mark.parametrize(
    ("edit", "error", "reason"),
    [
        ("DELETE FROM queuert_schema", StateError, r"must have one row .* got \[\]: restore"),
        ("INSERT INTO queuert_schema (version) VALUES (1)", StateError, "must have one row"),
        ("UPDATE queuert_schema SET version = 'x'", StateError, r"got \['x'\]: restore"),
        ("UPDATE queuert_schema SET version = 0", StateError, r"got \[0\]: restore"),
        ("UPDATE queuert_schema SET version = 1", StateError, r"got version 1, but they are newer .*: restore"),
        ("DROP TABLE queuert_schema", StateError, "got no version, but they are newer"),
        ("DROP TABLE queuert_job", SchemaMissingError, "no such table: queuert_job.*: restore"),
        ("ALTER TABLE queuert_job RENAME COLUMN priority TO p", SchemaMissingError, "priority.*: restore"),
    ],
)
def test_a_file_whose_tables_somebody_has_edited(path: Path, edit: str, error: type[StateError], reason: str) -> None:
    with Client(SQLiteState(path), JOB_TYPES) as client:
        client.start_chain(single, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(edit)
    with pytest.raises(error, match=reason) as caught, Client(SQLiteState(path), JOB_TYPES) as client:
        client.start_chain(single, 1)
    assert type(caught.value) is error


def test_a_file_of_a_newer_version(path: Path) -> None:
    opened(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE queuert_schema SET version = version + 1")
    before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    with pytest.raises(
        SchemaMissingError, match=f"version {SCHEMA_VERSION + 1} .* knows only {SCHEMA_VERSION}: upgrade"
    ):
        opened(path)
    assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == before
    connection.close()


def test_a_file_of_an_older_version_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    [started] = store.start_jobs([job()])
    store.close()
    monkeypatch.setattr(schema, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    monkeypatch.setattr(schema, "UPGRADES", (*schema.UPGRADES, "to_two", "to_three"))
    steps = {
        "to_two": "CREATE TABLE queuert_new (a INTEGER);\nCREATE TABLE queuert_newer (a INTEGER)\n",
        "to_three": "DROP TABLE queuert_newer",
    }
    monkeypatch.setattr(schema, "read_file", lambda package, name: read_file(package, name) | steps)
    for _ in range(2):
        store = opened(path)
        assert store.get_jobs([started.id])[0] is not None
        store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM queuert_schema").fetchall() == [(SCHEMA_VERSION + 2,)]
    found = "SELECT name FROM sqlite_master WHERE name LIKE 'queuert_new%'"
    assert connection.execute(found).fetchall() == [("queuert_new",)]
    connection.close()


_WEBHOOKS = ("queuert_webhook_record", "queuert_webhook_attempt")


def test_every_older_version_becomes_this_one(path: Path) -> None:
    """The steps that there are lead from the first version to what a new file has."""

    def columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
        tables = ("queuert_job", "queuert_schedule")
        return {(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")}

    store = opened(path)
    [started] = store.start_jobs([job()])
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    new = columns(connection)
    connection.execute("DROP VIEW queuert_chain")
    connection.execute("CREATE VIEW queuert_chain AS SELECT id FROM queuert_job")
    for column in ("progress", "attempt_trace_context", "failures", "max_attempts", "stale_at"):
        connection.execute(f"ALTER TABLE queuert_job DROP COLUMN {column}")
    for column in ("owner", "overlap", "jitter", "starts_at", "ends_at", "attributes", "result_ttl", "last_chain_id"):
        connection.execute(f"ALTER TABLE queuert_schedule DROP COLUMN {column}")
    connection.execute("ALTER TABLE queuert_paused_type DROP COLUMN paused_by")
    for index in ("queuert_job_key_order", "queuert_job_later_ready"):
        connection.execute(f"DROP INDEX {index}")
    connection.execute("DROP TABLE queuert_type_limit")
    connection.execute("DROP TABLE queuert_activity")
    connection.execute("DROP TABLE queuert_job_step")
    connection.execute("DROP TABLE queuert_sent_event")
    for table in ("queuert_event", "queuert_event_level", "queuert_event_log", *_WEBHOOKS, "queuert_type_trait"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("UPDATE queuert_schema SET version = 1")
    store = opened(path)
    assert [one is not None and one.id for one in store.get_jobs([started.id])] == [started.id]
    store.close()
    assert columns(connection) == new
    connection.close()


def test_many_open_a_new_file_at_once(path: Path) -> None:
    errors: list[BaseException] = []

    def begin() -> None:
        try:
            store = opened(path, answer_timeout=20.0)
            store.start_jobs([job()])
            store.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = opened(path)
    assert store.count_jobs()[0].count == 16
    store.close()


# --- who else uses it -------------------------------------------------------------------------------------------------


def test_a_file_that_others_hold(path: Path) -> None:
    """To write is to wait, at most for so long; to read is not."""
    store = opened(path, answer_timeout=0.1)
    [started] = store.start_jobs([job()])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateUnavailableError, match="kept the database locked for too long"):
        store.claim(ask())
    assert store.get_jobs([started.id])[0] is not None
    holder.execute("ROLLBACK")
    holder.close()
    assert len(store.claim(ask())) == 1
    store.close()


def test_reading_goes_on_beside_a_transaction(path: Path) -> None:
    """Of this very store, and while others of it wait for the end of the transaction."""
    store = opened(path, answer_timeout=20.0)
    store.start_jobs([job(), job()])
    [held, other] = store.claim(ask())
    finished = threading.Event()

    def finish_the_other() -> None:
        store.finish([complete(other)])
        finished.set()

    waiting = threading.Thread(target=finish_the_other)
    with store.transaction(held) as transaction:
        waiting.start()
        transaction.finish(complete(held))
        for _ in range(20):
            assert [one.status.value for one in store.get_jobs([held.id, other.id]) if one] == ["running", "running"]
        assert not finished.is_set()
    waiting.join()
    assert [one.status.value for one in store.get_jobs([held.id, other.id]) if one] == ["completed", "completed"]
    store.close()


def test_a_closed_store(path: Path) -> None:
    store = SQLiteState(path).sync_store()
    calls: list[Callable[[], object]] = [
        store.count_jobs,
        lambda: store.start_jobs([job()]),
        lambda: store.claim(ClaimRequest({"work": 1.0}, 1, "me", new_token())),
    ]
    for _ in range(2):
        for call in calls:
            with pytest.raises(ClosedError):
                call()
        store.open()
        store.start_jobs([job()])
        store.close()
        store.close()


def test_closing_ends_what_is_under_way(state: SQLiteState) -> None:
    """A transaction of the store that is open meanwhile is not committed."""
    store = state.sync_store()
    store.open()
    store.start_jobs([job()])
    [held] = store.claim(ask())
    block = store.transaction(held)
    transaction = block.__enter__()
    transaction.finish(complete(held))
    if Capability.MULTI_PROCESS in state.capabilities:
        store.close()
    else:
        transaction.abort()
    with pytest.raises(StateUnavailableError):
        block.__exit__(None, None, None)
    store.close()
    store.open()
    found = store.get_jobs([held.id])[0]
    assert found is not None
    assert found.status.value == "running"
    store.close()


# --- processes --------------------------------------------------------------------------------------------------------


def test_memory_is_of_one_process() -> None:
    with pytest.raises(ConfigurationError, match="cannot be shared between processes"):
        pickle.dumps(SQLiteState())
    assert Capability.MULTI_PROCESS not in SQLiteState().capabilities


def test_a_state_goes_to_other_processes(path: Path) -> None:
    state: SQLiteState = pickle.loads(pickle.dumps(SQLiteState(path, answer_timeout=7.0, synchronous="normal")))
    assert (state.path, repr(state)) == (str(path), f"SQLiteState({str(path)!r})")
    with Client(state, JOB_TYPES) as client:
        assert client.start_chain(single, 1).id


@pytest.mark.timeout(150)
def test_a_forked_child_begins_anew(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.state.sqlite.forking", str(path)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr


def test_a_database_in_memory_is_closed_with_its_state() -> None:
    """Nobody has to: it lives as long as the state."""
    state = SQLiteState()
    store = state.sync_store()
    store.open()
    link = state._memory()
    store.close()
    assert not link.closed
    del state, store
    gc.collect()
    assert link.closed
