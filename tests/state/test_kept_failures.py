"""Failures that were edited by hand: they stop neither a finish nor a read."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert.jobs import JobError, JobFailure
from queuert.state.postgres import PostgresState
from queuert.state.records import job_failures
from queuert.state.sqlite import SQLiteState
from queuert.state.types import Finish, FinishKind, NewJob, failure_error
from queuert.testing.conformance.builders import ask, fail, retry

AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
WHOLE = {"attempt": 2, "started_at": None, "failed_at": "2026-01-31T13:00:00.25+01:00", "worker": None, "error": None}
SHOWN = JobFailure(2, None, AT, None, JobError("unknown", "the attempt failed without an error"))


@pytest.mark.parametrize("values", [None, {}, "text", 7, [], [None, 1, "text", [], {}], [{**WHOLE, "attempt": "x"}]])
def test_what_cannot_be_read_is_left_out(values: Any) -> None:
    assert job_failures(values) == ()


@pytest.mark.parametrize(
    "wrong", [{"failed_at": "soon"}, {"failed_at": None}, {"failed_at": 10**30}, {"started_at": []}]
)
def test_what_can_be_read_is_shown(wrong: dict[str, Any]) -> None:
    assert job_failures([{**WHOLE, **wrong}, WHOLE]) == (SHOWN,)


def test_times_are_text_or_microseconds() -> None:
    microseconds = int(AT.timestamp()) * 1_000_000 + AT.microsecond
    [found] = job_failures([{**WHOLE, "started_at": microseconds, "failed_at": microseconds, "error": "odd"}])
    assert (found.started_at, found.failed_at, found.error) == (AT, AT, JobError("unknown", "odd"))


def test_an_error_of_usual_length_is_kept_as_it_is() -> None:
    error = JobError("handler", "m" * 1_000, "ValueError", "t" * 2_000)
    assert failure_error(error) is error
    assert failure_error(None) is None


def _failed_again(store: Any, id: str) -> list[int]:
    """Fail one more attempt in each way; the numbers of the failures."""
    [claimed] = store.claim(ask())
    assert store.finish([retry(claimed)])[0].written
    [claimed] = store.claim(ask())
    assert store.finish([fail(claimed)])[0].written
    [found] = store.get_jobs([id])
    return [one.attempt for one in found.failures]


@pytest.mark.parametrize("edited", ["{}", "null", "7", '"text"', "[]"])
def test_postgres_writes_over_what_is_no_array(dsn: str, edited: str) -> None:
    store = PostgresState(dsn).sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "1")])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE queuert.job DROP CONSTRAINT job_failures_are_bounded")
        connection.execute("UPDATE queuert.job SET failures = %s", [edited])
    assert _failed_again(store, "a") == [1, 2]
    store.close()


@pytest.mark.parametrize("edited", ["{}", "null", "7", "no JSON", "[]", ""])
def test_sqlite_writes_over_what_is_no_array(tmp_path: Path, edited: str) -> None:
    store = SQLiteState(tmp_path / "jobs.db").sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "1")])
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("UPDATE queuert_job SET failures = ?", [edited])
    connection.close()
    assert _failed_again(store, "a") == [1, 2]
    store.close()


def test_a_job_that_never_failed_has_none_in_its_row(dsn: str) -> None:
    """Jobs that succeed are written as before."""
    store = PostgresState(dsn).sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "1")])
    [claimed] = store.claim(ask())
    store.finish([Finish(claimed, FinishKind.COMPLETE, output="1")])
    store.close()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT failures FROM queuert.job").fetchall() == [(None,)]
