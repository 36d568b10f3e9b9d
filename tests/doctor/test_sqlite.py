"""The checks of ``queuert doctor`` on SQLite: each with its symptom, and all of them on a file where all is well."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import namedtuple
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from queuert import Client, JobType, JobTypes
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.limits import TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Finding, Severity, Thresholds
from queuert.state.sqlite import SQLiteState, doctor
from queuert.workers import WorkerHeartbeat, WorkerState

number = JobType("number", input=int, output=int)
CHECKS = {
    *("schema", "journal", "integrity", "synchronous", "write_ahead_log", "workers", "retention", "disk"),
    "file_system",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a chain that nobody works at."""
    path = tmp_path / "jobs.db"
    with Client(SQLiteState(path), JobTypes(number), notify=InProcessNotify()) as client:
        client.start_chain(number, 1, id="only")
    return path


def problem(path: Path, check: str, thresholds: Thresholds = DEFAULT_THRESHOLDS, synchronous: str = "full") -> Finding:
    [one] = [one for one in SQLiteState(path, synchronous=synchronous).diagnose(thresholds) if one.check == check]
    assert one.severity in (Severity.WARNING, Severity.ERROR), one
    assert one.reason
    assert one.remedy
    return one


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room, whatever the machine has."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100 * 2**30, 2**30, 99 * 2**30))


def test_all_is_well(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SQLiteState(file).sync_store()
    store.open()
    with closing(store):
        store.record_heartbeat(heartbeat("number"), 60.0)
    assert main(["doctor", "--url", f"sqlite:///{file}", "--json"]) == Exit.DONE
    items = json.loads(capsys.readouterr().out)["items"]
    assert {item["check"] for item in items} == CHECKS
    assert {item["severity"] for item in items} == {"ok"}


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        ("DROP TABLE queuert_job", "without queuert_job"),
        ("DROP TABLE queuert_job_step", "without queuert_job_step"),
        ("ALTER TABLE queuert_worker RENAME COLUMN job_types TO types", "without queuert_worker.job_types"),
        ("DELETE FROM queuert_schema", "got []"),
        ("UPDATE queuert_schema SET version = 'x'", "got ['x']"),
        ("UPDATE queuert_schema SET version = 'a: b'", "got ['a: b']"),
        ("UPDATE queuert_schema SET version = -1", "got [-1]"),
    ],
)
def test_tables_that_somebody_has_edited(file: Path, edit: str, found: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(edit)
    one = problem(file, "schema")
    assert one.severity is Severity.ERROR
    assert found in one.found
    assert one.remedy.startswith("restore the file from a backup")


def test_tables_that_are_newer_than_their_version(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE queuert_schema SET version = 1")
    found = [one for one in SQLiteState(file).diagnose() if one.check == "schema"]
    assert [one.severity for one in found] == [Severity.WARNING, Severity.ERROR]
    assert "they are newer" in found[1].found
    assert found[1].remedy.startswith("restore the file from a backup")


def test_memory_has_no_file() -> None:
    assert [one.severity for one in SQLiteState().diagnose()] == [Severity.OK]


def test_no_file_and_none_is_made(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.db", "file").severity is Severity.ERROR
    assert list(tmp_path.iterdir()) == []


def test_something_else_than_a_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to look like something\n" * 100)
    assert "not a database" in problem(path, "file").found


def test_a_damaged_file(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page_size,)] = connection.execute("PRAGMA page_size").fetchall()
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'queuert_job'").fetchall()
    connection.close()
    content = bytearray(file.read_bytes())
    content[(page - 1) * page_size : page * page_size] = b"\xff" * page_size
    file.write_bytes(content)
    findings = SQLiteState(file).diagnose()
    assert any(one.severity is Severity.ERROR and one.check in ("integrity", "file") for one in findings)


@pytest.mark.parametrize(("version", "severity"), [(1, Severity.WARNING), (99, Severity.ERROR)])
def test_tables_of_another_version(file: Path, version: int, severity: Severity) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE queuert_schema SET version = ?", [version])
    connection.close()
    findings = list(doctor._file(file))
    [one] = [one for one in findings if one.check == "schema"]
    assert one.severity is severity


def test_another_journal_mode(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode = delete")
    connection.close()
    assert "journal_mode = wal" in problem(file, "journal").remedy


def test_commits_that_are_not_flushed(file: Path) -> None:
    assert "synchronous='full'" in problem(file, "synchronous", synchronous="normal").remedy


def test_a_long_write_ahead_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LARGE_LOG", 0)
    with sqlite3.connect(file) as reader, sqlite3.connect(file) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queuert_job").fetchall()
        writer.execute("CREATE TABLE more (x)")
        writer.commit()
        assert "wal_checkpoint" in problem(file, "write_ahead_log").remedy
    reader.close()
    writer.close()


@pytest.mark.parametrize(("free", "severity"), [(5 * 2**30, Severity.WARNING), (2**20, Severity.ERROR)])
def test_a_full_disk(file: Path, monkeypatch: pytest.MonkeyPatch, free: int, severity: Severity) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100 * 2**30, 100 * 2**30 - free, free))
    assert problem(file, "disk").severity is severity


def test_a_network_file_system(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/share {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(doctor, "MOUNTS", mounts)
    assert "nfs4" in problem(file, "file_system").found
    # Of two mounts on one directory, files are on the later one.
    mounts.write_text(f"disk / ext4 rw 0 0\ndisk2 {tmp_path} ext4 rw 0 0\nserver:/share {tmp_path} nfs4 rw 0 0\n")
    assert "nfs4" in problem(file, "file_system").found


def test_what_is_in_it(file: Path) -> None:
    assert "no live worker" in problem(file, "workers", replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)).reason
    with Client(SQLiteState(file), JobTypes(number), notify=InProcessNotify()) as client:
        client.cancel_chain("only", reason="a test")
    assert "number" in problem(file, "retention", replace(DEFAULT_THRESHOLDS, kept_days=0.0)).found


def test_due_jobs_without_a_worker(file: Path) -> None:
    """At once if no worker is alive: nobody is about to take them. Else after a minute, and until then they are named.

    A paused type needs no worker to be paused.
    """
    found = problem(file, "workers")
    assert found.found.startswith("the oldest due job of type number has waited for ")
    assert found.reason == "no live worker handles the type: none is alive"
    fresh = "due jobs of types that nobody handles, or that are paused: 1; none of them has waited for 60 seconds yet"
    with Client(SQLiteState(file), JobTypes(number), notify=InProcessNotify()) as client:
        client.pause_job_types([number])
        [paused] = [one for one in SQLiteState(file).diagnose() if one.check == "workers"]
        client.resume_job_types([number])
    assert (paused.severity, paused.found) == (Severity.OK, f"0 alive; {fresh}")
    store = SQLiteState(file).sync_store()
    store.open()
    with closing(store):
        store.record_heartbeat(heartbeat("other"), 60.0)
    [another] = [one for one in SQLiteState(file).diagnose() if one.check == "workers"]
    assert (another.severity, another.found) == (Severity.OK, f"1 alive; {fresh}")


def test_due_jobs_of_a_type_that_a_worker_handles(file: Path) -> None:
    """They may wait for long where there is much to do."""
    store = SQLiteState(file).sync_store()
    store.open()
    with closing(store):
        store.record_heartbeat(heartbeat("number"), 60.0)
    thresholds = replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)
    [one] = [one for one in SQLiteState(file).diagnose(thresholds) if one.check == "workers"]
    assert one.severity is Severity.OK


def test_due_jobs_whose_workers_are_stopping(file: Path) -> None:
    store = SQLiteState(file).sync_store()
    store.open()
    with closing(store):
        store.record_heartbeat(replace(heartbeat("number"), state=WorkerState.STOPPING), 60.0)
        [worker] = store.list_workers()
    found = problem(file, "workers", replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0))
    assert found.reason == f"no live worker handles the type; 1 worker that handles it is stopping ({worker.id})"


def test_a_bulk_operation_that_nobody_carries_out(file: Path) -> None:
    """Each worker would, whatever it handles."""
    thresholds = replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)
    with Client(SQLiteState(file), JobTypes(number), notify=InProcessNotify()) as client:
        client.cancel_chain("only", reason="a test")
        client.start_bulk_operation("retry", requested_by="ana")
    found = problem(file, "workers", thresholds)
    assert found.reason == "no live worker handles the type: none is alive"
    remedy = "start a worker, of whatever types: queuert worker MODULE:ATTRIBUTE; or: queuert operations run"
    assert found.remedy == remedy
    store = SQLiteState(file).sync_store()
    store.open()
    with closing(store):
        store.record_heartbeat(heartbeat("other"), 60.0)
    [one] = [one for one in SQLiteState(file).diagnose(thresholds) if one.check == "workers"]
    assert one.severity is Severity.OK


def test_jobs_that_wait_for_a_client(file: Path) -> None:
    """They need no worker. The time that their type allows decides, not that for workers."""
    store = SQLiteState(file).sync_store()
    store.open()
    thresholds = replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)
    found = {}
    with closing(store):
        for allowed in (None, 3600.0, 0.0):
            traits = (TypeTraits("number", completed_by_client=True, overdue_after=allowed),)
            store.record_heartbeat(replace(heartbeat(), traits=traits), 60.0)
            by_check = {one.check: one for one in SQLiteState(file).diagnose(thresholds)}
            assert by_check["workers"].severity is Severity.OK
            found[allowed] = by_check.get("clients")
    assert found[None] is None
    assert found[3600.0] is not None
    assert found[3600.0].severity is Severity.OK
    assert found[0.0] is not None
    assert found[0.0].severity is Severity.WARNING
    assert found[0.0].found.startswith("the oldest job of type number has waited for a client for ")
    assert found[0.0].remedy.startswith("queuert jobs list --type number --status ready --oldest-first; complete")


def heartbeat(*types: str) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        id="worker",
        name="worker",
        host="here",
        pid=1,
        version="1",
        job_types=types,
        concurrency=1,
        running=0,
        uptime=0.0,
    )
