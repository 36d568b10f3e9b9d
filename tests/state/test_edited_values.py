"""Texts in stored rows that somebody has edited: they are shown as far as they can be, and no list fails for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import redis

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.attributes import attributes_of
from queuert.cli.output import shown
from queuert.state.adapter import StateAdapter
from queuert.state.records import job_progress
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState

work = JobType("work", input=int, output=int)
AT = '"at": "2024-01-01T00:00:00+00:00"'
PHASE = f'{{"attempt": 0, {AT}, "phase": {{"name": "a", "count": 1, "fraction": 0, %s}}}}'
STARTED = '"started_at": "2024-01-01T00:00:00+00:00"'

UNREADABLE = [
    f'{{"attempt": 0, {AT}, "done": 1{"0" * 400}}}',
    PHASE % f'"number": 1e999, {STARTED}',
    PHASE % '"number": 1, "started_at": "0001-01-01T00:00:00+14:00"',
    '{"attempt": 0, "at": "0001-01-01T00:00:00+14:00", "done": 1}',
    '{"attempt": 0, "at": 5, "done": 1}',
    f'{{"attempt": 0, {AT}, "phase": 7}}',
    *("[]", "7", '"x"', "null", "{bad", "[" * 100_000),
]
ATTRIBUTES = {
    "{bad": {},
    "[]": {},
    "7": {},
    '"x"': {},
    '{"a": 1, "b": "c"}': {"b": "c"},
    '{"a": null, "b": ["c", "d"]}': {"b": ("c", "d")},
    '{"a": {"b": 1}, "c": ["d", 1]}': {},
}


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:60])
def test_progress_that_cannot_be_read_is_none(text: str) -> None:
    assert job_progress(text, 0) is None


@pytest.mark.parametrize(
    ("text", "hours"), [("2024-01-01T05:00:00+05:00", 0), ("2024-01-01T05:00:00", 5), ("2024-01-01T05:00:00Z", 5)]
)
def test_times_of_progress_are_in_utc(text: str, hours: int) -> None:
    progress = job_progress(f'{{"attempt": 0, "at": "{text}", "done": 1}}', 0)
    assert progress is not None
    assert progress.at == datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    assert progress.at.tzinfo is UTC
    assert shown(progress)


@pytest.mark.parametrize("text", ATTRIBUTES)
def test_attributes_that_cannot_be_read_are_left_out(text: str) -> None:
    assert attributes_of(text) == attributes_of(text.encode()) == ATTRIBUTES[text]


def edit_postgres(dsn: str, column: str, text: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE queuert.job SET {column} = %s WHERE id = 'edited'".encode(), [text])


def edit_redis(url: str, column: str, text: str) -> None:
    with redis.Redis.from_url(url) as client:
        if column == "attributes":
            client.set("{queuert:default}:a:edited", text)
        else:
            client.hset("{queuert:default}:j:edited", column, text)


def edit_sqlite(path: str, column: str, text: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE queuert_job SET {column} = ? WHERE id = 'edited'", [text])


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StateAdapter, Callable[[str, str], None]]:
    """A store, and what writes to its jobs past the library."""
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("dsn")
        return PostgresState(dsn), lambda column, text: edit_postgres(dsn, column, text)
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        return RedisState(url), lambda column, text: edit_redis(url, column, text)
    path = str(tmp_path / "jobs.db")
    return SQLiteState(path), lambda column, text: edit_sqlite(path, column, text)


def test_a_list_shows_rows_that_somebody_has_edited(place: tuple[StateAdapter, Callable[[str, str], None]]) -> None:
    state, edit = place
    with Client(state, JobTypes(work)) as client:
        client.start_chain(work, 1, id="edited", attributes={"user": "ada"})
        client.start_chain(work, 2, id="other")
        for text in UNREADABLE:
            edit("progress", text)
            jobs = {job.id: job.progress for job in client.list_jobs()}
            assert jobs == {"edited": None, "other": None}
            assert client.get_chain_states(["edited"])[0].progress is None
        # A column of Postgres takes valid JSON alone.
        for text in (text for text in ATTRIBUTES if text != "{bad" or not isinstance(state, PostgresState)):
            edit("attributes", text)
            assert {chain.id: chain.attributes for chain in client.list_chains()} == {
                "edited": ATTRIBUTES[text], "other": {},
            }  # fmt: skip


def test_a_chain_is_deleted_whatever_its_attributes_are(place: tuple[StateAdapter, Callable[[str, str], None]]) -> None:
    state, edit = place
    with Client(state, JobTypes(work)) as client:
        texts = [*ATTRIBUTES, '["a"]', '{"a": [null, true, ["b"]], "b": false}', "[" * 100_000]
        if isinstance(state, PostgresState):
            # Its column takes valid JSON alone.
            texts = [text for text in texts if not text.startswith(("{bad", "[["))]
        for text in texts:
            client.start_chain(work, 1, id="edited", attributes={"b": "c"})
            edit("attributes", text)
            assert client.delete_chains(["edited"]) == ["edited"]
            assert not list(client.list_jobs())
            assert not list(client.list_chains(attributes={"b": "c"}))
