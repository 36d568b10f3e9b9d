"""Staged rows whose ids exist, or come more than once: which of them count. Without Spark: rows are staged by hand."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest

from queuert.deduplication import DeduplicationScope
from queuert.errors import JobIdConflictError, StateUnavailableError
from queuert.state.postgres.bulk import BulkSession, BulkSettings, bulk_session, copy_rows, make_stage
from queuert.state.postgres.bulk_commit import BulkResult, BulkStart, Part, commit_write
from tests.spark.support import query, wait_for_commit_to_block

Row = Mapping[str, str | None]


@pytest.fixture
def session(dsn: str) -> Iterator[BulkSession]:
    settings = BulkSettings(dsn, "queuert", lock_timeout=300.0)
    with bulk_session(settings, application_name="queuert commit of a test") as session:
        yield session


def write(session: BulkSession, *parts: Sequence[Row], **chosen: Any) -> BulkResult:
    """Commit rows of several tasks, of which the last has staged its own first."""
    names = sorted({name for part in parts for row in part for name in row} | {"id"})
    tags = [str(uuid.uuid4()) for _ in parts]
    stage = make_stage(session, "w")
    for tag, part in reversed(list(zip(tags, parts, strict=True))):
        lines = [_line(tag, place, [row.get(name) for name in names]) for place, row in enumerate(part)]
        copy_rows(session, stage, ("tag", "place", "input", *names), reversed(lines))
    start = BulkStart(
        "resize",
        str(uuid.uuid4()),
        [Part(tag, len(part)) for tag, part in zip(tags, parts, strict=True)],
        has_ids=True,
        has_keys="deduplication_key" in names,
        has_blockers="blocked_by" in names,
        **chosen,
    )
    return commit_write(session, stage, start)


def _line(tag: str, place: int, values: list[str | None]) -> bytes:
    """A row as COPY takes it, with its task's place as input."""
    texts = [tag, str(place), str(place), *("\\N" if value is None else value for value in values)]
    return ("\t".join(texts) + "\n").encode()


def row(id: str, key: str | None = None) -> Row:
    return {"id": id, "deduplication_key": key}


def waiting(id: str, *blockers: str) -> Row:
    return {"id": id, "blocked_by": f"{{{','.join(blockers)}}}"}


def jobs(dsn: str) -> list[Any]:
    return query(dsn, "SELECT id, input FROM queuert.job ORDER BY created_at")


def keys(dsn: str) -> list[Any]:
    return query(dsn, "SELECT id, deduplication_key FROM queuert.job ORDER BY id")


def blockers(dsn: str) -> list[Any]:
    return query(dsn, "SELECT job_id, blocker_chain_id FROM queuert.job_blocker ORDER BY 1, 2")


def test_a_row_that_is_passed_over_stands_in_for_none(session: BulkSession, dsn: str) -> None:
    write(session, [{"id": "x"}])
    result = write(session, [row("x", "k"), row("y", "k"), row("z", "k")], skip_existing=True)
    assert (result.rows, result.started) == (3, 1)
    assert keys(dsn) == [("x", None), ("y", "k")]


@pytest.mark.parametrize("scope", DeduplicationScope)
def test_a_chain_of_before_the_window_stands_in_for_no_row(
    session: BulkSession, dsn: str, scope: DeduplicationScope
) -> None:
    write(session, [row("old", "k"), row("young", "l")])
    session.connection.execute("UPDATE queuert.job SET created_at = created_at - interval '1 h' WHERE id = 'old'")
    result = write(session, [row("a", "k"), row("b", "l"), row("c", "k")], scope=scope, window=1800.0)
    assert (result.rows, result.started) == (3, 1)
    assert keys(dsn) == [("a", "k"), ("old", "k"), ("young", "l")]
    # Within a window that is longer it does, and without any.
    session.connection.execute("DELETE FROM queuert.job WHERE id = 'a'")
    for window in (5400.0, None):
        assert write(session, [row("a", "k")], scope=scope, window=window).started == 0


def test_a_row_whose_id_is_taken_meanwhile_stands_in_for_none(session: BulkSession, dsn: str) -> None:
    results: list[BulkResult] = []
    rows = [row("x", "k"), row("y", "k")]
    with psycopg.connect(dsn) as other:
        other.execute(
            "INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, input)"
            " VALUES ('x', 'resize', 'x', 'resize', 'open', '7')"
        )
        thread = threading.Thread(target=lambda: results.append(write(session, rows, skip_existing=True)))
        thread.start()
        wait_for_commit_to_block(dsn)
    thread.join()
    assert [result.started for result in results] == [1]
    assert keys(dsn) == [("x", None), ("y", "k")]


def test_a_write_whose_id_is_taken_anew_in_each_round_gives_up(session: BulkSession, dsn: str) -> None:
    """As if others took it, and gave it back before the next look: the insert passes it over each time."""
    session.connection.execute(
        "CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER taken BEFORE INSERT ON queuert.job FOR EACH ROW WHEN (new.id = 'x') EXECUTE FUNCTION taken()"
    )
    with pytest.raises(StateUnavailableError, match="write again"):
        write(session, [row("x", "k"), row("y", "k")], skip_existing=True)
    assert keys(dsn) == []
    assert query(dsn, "SELECT count(*) FROM queuert.bulk_write") == [0]


def test_of_a_repeated_id_the_first_row_counts(session: BulkSession, dsn: str) -> None:
    first, second = ([{"id": id} for id in ids] for ids in ("abbe", "ecacd"))
    assert write(session, first, second, skip_existing=True).started == 5
    assert jobs(dsn) == [("a", 0), ("b", 1), ("e", 3), ("c", 1), ("d", 4)]


def test_a_repetition_of_an_id_stands_in_for_none(session: BulkSession, dsn: str) -> None:
    result = write(session, [row("a", "k"), row("a", "l")], [row("b", "l"), row("c", "l")], skip_existing=True)
    assert (result.rows, result.started) == (4, 2)
    assert keys(dsn) == [("a", "k"), ("b", "l")]


def test_a_repeated_id_waits_for_what_its_first_row_names(session: BulkSession, dsn: str) -> None:
    write(session, [{"id": "p"}, {"id": "r"}])
    rows = [waiting("z", "p"), waiting("z", "r"), waiting("y"), waiting("y", "p"), waiting("x", "r", "p")]
    assert write(session, rows, skip_existing=True).started == 3
    assert blockers(dsn) == [("x", "p"), ("x", "r"), ("z", "p")]
    assert query(dsn, "SELECT id, status FROM queuert.job WHERE id IN ('x', 'y', 'z') ORDER BY id") == [
        ("x", "blocked"),
        ("y", "ready"),
        ("z", "blocked"),
    ]


def test_a_row_that_is_passed_over_waits_for_nothing(session: BulkSession, dsn: str) -> None:
    write(session, [{"id": "p"}])
    rows = [waiting("p", "missing"), waiting("q", "p"), waiting("q", "missing")]
    assert write(session, rows, skip_existing=True).started == 1
    assert blockers(dsn) == [("q", "p")]


def test_repeated_ids_fail_the_write_and_are_named(session: BulkSession, dsn: str) -> None:
    with pytest.raises(JobIdConflictError, match=r"^these ids occur more than once in the write: 'a', 'b'$") as caught:
        write(session, [{"id": "b"}, {"id": "a"}], [{"id": "a"}, {"id": "c"}, {"id": "b"}])
    assert caught.value.ids == ("a", "b")
    assert jobs(dsn) == []


def test_repeated_ids_and_those_that_exist_are_reported_apart(session: BulkSession, dsn: str) -> None:
    write(session, [{"id": "x"}])
    expected = r"^jobs with these ids exist already: 'x'; these ids occur more than once in the write: 'a'$"
    with pytest.raises(JobIdConflictError, match=expected) as caught:
        write(session, [{"id": "a"}, {"id": "a"}, {"id": "x"}])
    assert (caught.value.ids, caught.value.repeated) == (("x", "a"), ("a",))
    assert jobs(dsn) == [("x", 0)]


def test_a_repetition_that_is_a_duplicate_as_well_is_no_conflict(session: BulkSession, dsn: str) -> None:
    same = [row("a", "k"), row("a", "k")]
    with pytest.raises(JobIdConflictError) as caught:
        write(session, [*same, row("b", "l"), row("b", "m"), row("c", "n"), row("c")])
    assert caught.value.ids == ("b", "c")
    assert write(session, same).started == 1
    assert keys(dsn) == [("a", "k")]
