"""Text from rows, the catalog, options and addresses that becomes a part of a statement, a path or an address.

Names of schemas, roles, snapshots and namespaces are in test_names.py, names of staging tables in test_stored_names.py.
"""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from queuert import PostgresState, migrations
from queuert.demo.stage import _on_own_postgres
from queuert.errors import MigrationError, QueuertError
from queuert.spark.errors import HistoryOutputError, SparkOptionError
from queuert.spark.history.files import check_path
from queuert.spark.history.records import Manifest, Step
from queuert.spark.options import ConnectionOptions, WriteOptions, parse_options
from queuert.spark.read.columns import EVENTS
from queuert.spark.read.options import ReadOptions
from queuert.spark.read.sql import Day, event_queries
from queuert.spark.write.rejects import remove_others
from queuert.state.postgres import bulk
from queuert.state.sqlite import SQLiteState
from queuert.state.types import NewJob

HOSTILE = [
    'x"; drop table queuert.job; --',
    "x'; drop table queuert.job; --",
    "x; drop table queuert.job",
    "x -- ",
    "x\n; drop table queuert.job",
    "100%s",
    "%(types_any)s",
    "{schema}",
    "\\x",
    "$$x$$",
    "../../x",
    "é\u202e\ufeff",
]


# --- names of the catalog ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_partition_of_any_name_is_read_and_does_not_stop_maintenance(dsn: str, name: str) -> None:
    """Nobody but the owner can attach one; that it is named after no day must not stop what looks after the others."""
    store = PostgresState(dsn).sync_store()
    store.open()
    with psycopg.connect(dsn, autocommit=True) as owner:
        partition = sql.Identifier("queuert", name)
        made = sql.SQL("CREATE TABLE {} PARTITION OF queuert.job_event FOR VALUES FROM ({}) TO ({})")
        owner.execute(made.format(partition, sql.Literal("2001-01-01"), sql.Literal("2001-01-02")))
        owner.execute(
            """INSERT INTO queuert.job_event
                   (happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt)
               VALUES ('2001-01-01 12:00:00+00', 'created', 'ready', 'old', 'old', 0, 'work', 'work', 0)"""
        )
        try:
            store.start_jobs([NewJob("kept", "work", "{}", id_chosen=True)])
            store.maintain_event_log()
            assert len(store.get_event_log().partitions) > 1
            assert events_read(dsn) == {"old", "kept"}
        finally:
            store.close()


def events_read(dsn: str) -> set[str]:
    """The jobs whose events the queries of Spark find."""
    options = parse_options(ReadOptions, {"url": dsn, "table": "events", "types": '["work"]', "consistency": "none"})
    columns = [column for column in EVENTS if column.name == "job_id"]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(bulk_sql("read_days")).fetchall()
        queries = event_queries(options, columns, "queuert", [Day(*row) for row in rows])
        cursor = psycopg.ClientCursor(connection)
        found = [cursor.execute(query.text.encode(), query.parameters).fetchall() for query in queries]
    return {row[0] for rows in found for row in rows}


def bulk_sql(name: str) -> bytes:
    from queuert.state.postgres.statements import Statements

    statement: bytes = getattr(Statements("queuert"), name)
    return statement


@pytest.mark.parametrize("name", HOSTILE)
def test_columns_of_a_copy_are_quoted(name: str) -> None:
    made = bulk.staged(b"COPY {stage} ({columns}) FROM STDIN", bulk.STREAM_STAGE, columns=("tag", name))
    assert made == f'COPY "stream_stage" ("tag", {bulk.identifier(name)}) FROM STDIN'.encode()


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HOSTILE, "a host=evil", "a' host='evil", "a\\' host=evil", ""])
def test_the_service_of_an_option_is_one_value(name: str) -> None:
    dsn, _ = parse_options(ConnectionOptions, {"service": name}).address()
    assert conninfo_to_dict(dsn) == {"service": name}


@pytest.mark.parametrize("name", ["PATH", "HOME"])
def test_an_environment_variable_that_is_no_address_is_not_repeated(name: str) -> None:
    with pytest.raises(SparkOptionError) as caught:
        parse_options(ConnectionOptions, {"urlEnv": name}).address()
    assert os.environ[name] not in str(caught.value)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [*HOSTILE, "os", "os:", ":system", "os:path.join", "a b:c", "a:b;c", "os.path:join\n"]
)
def test_job_types_of_an_option_are_a_module_and_a_name(value: str) -> None:
    with pytest.raises(SparkOptionError, match="jobTypes"):
        parse_options(WriteOptions, {"jobType": "x", "jobTypes": value})


@pytest.mark.parametrize("value", [*HOSTILE, "a:1/x", "a:x/0e0c1dca-4fd8-4a2c-9a5e-3f1c8a2d9b77", ":1/"])
def test_a_fence_is_an_id_a_number_and_a_token(value: str) -> None:
    with pytest.raises(SparkOptionError, match="fence"):
        parse_options(WriteOptions, {"jobType": "x", "fence": value})


@pytest.mark.parametrize("value", ["é", "\n", "a\nb", "\x00", "x" * 4_097])
def test_a_trace_is_printable(value: str) -> None:
    with pytest.raises(SparkOptionError, match="traceContext"):
        parse_options(WriteOptions, {"jobType": "x", "traceContext": value})


@pytest.mark.parametrize("revision", [*HOSTILE, "x" * 10_000])
def test_the_revision_of_a_migration_is_one_that_there_is(bare_dsn: str, revision: str) -> None:
    for run in (migrations.upgrade, migrations.downgrade, migrations.stamp):
        with pytest.raises(MigrationError):
            run(bare_dsn, revision=revision)
    with pytest.raises(QueuertError):
        migrations.sql(revision=revision)


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [*[one for one in HOSTILE if "/" not in one], "a?mode=memory", "a#b", "%2e%2e%2fx", "a&b=c", ":memory", "file"],
)
def test_the_name_of_a_sqlite_file_is_its_name(tmp_path: Path, name: str) -> None:
    store = SQLiteState(tmp_path / name).sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "1")])
    store.close()
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("path", ["a\x00b", "file:x?mode=memory", "", "file::memory:?cache=shared"])
def test_what_is_no_path_of_a_sqlite_file_is_refused(path: str) -> None:
    with pytest.raises(QueuertError):
        SQLiteState(path)


def test_two_slashes_before_the_path_of_a_sqlite_file_name_no_machine(tmp_path: Path) -> None:
    store = SQLiteState(f"/{tmp_path}/queue.db").sync_store()
    store.open()
    store.close()
    assert (tmp_path / "queue.db").exists()


@pytest.mark.parametrize("run", [*HOSTILE, "..", ".", "*", "a/b", "a?", "{a,b}", "[a]", "", "run=x"])
def test_the_run_of_a_stored_manifest_is_no_path_and_no_pattern(run: str) -> None:
    """What a run removes is named after it; the file may come from anybody who may write to the output."""
    given: dict[str, Any] = {"step": Step.PLANNED, "to_tx": 1, "cut": datetime.now(UTC), "begun_at": datetime.now(UTC)}
    assert Manifest(run="20300101T000000Z-abc", **given).run
    with pytest.raises(ValueError, match="run"):
        Manifest(run=run, **given)


@pytest.mark.parametrize("name", [*HOSTILE, "../victim", "*", "/victim"])
def test_names_of_files_that_a_row_holds_remove_nothing(tmp_path: Path, name: str) -> None:
    """They say what is to be kept; what goes was found in the directory, and has the beginning of the write."""
    (tmp_path / "rejects").mkdir()
    kept = [tmp_path / "victim", tmp_path / "rejects" / "other.parquet", tmp_path / "rejects" / "rejects-1-won.parquet"]
    for path in (*kept, tmp_path / "rejects" / "rejects-1-lost.parquet"):
        path.touch()
    remove_others(str(tmp_path / "rejects"), "rejects-1-", [name, "rejects-1-won.parquet"])
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


@pytest.mark.parametrize("path", ["/data/*", "/data/{a,b}", "/data/[a]", "/data/?"])
def test_the_output_of_a_history_is_no_pattern(path: str) -> None:
    with pytest.raises((SparkOptionError, HistoryOutputError)):
        check_path(path)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_command_that_the_demo_prints_runs_what_it_says(name: str) -> None:
    """It is to be pasted into a shell, and the path is where TMPDIR says."""
    workspace = Path("/tmp") / name
    [line] = [line for line in _on_own_postgres(workspace).split("\n  ") if line.startswith("start the server with")]
    _, flag, code = shlex.split(line.partition(": ")[2])
    assert flag == "-c"
    opened: list[str] = []

    class Server:
        """Takes the place of the embedded one."""

        def __init__(self, path: str) -> None:
            opened.append(path)

        def start(self) -> Any:
            raise KeyboardInterrupt

    names = compile(code, "printed", "exec")
    with pytest.raises(KeyboardInterrupt):
        exec(names, {"__builtins__": {"__import__": lambda *_: type("m", (), {"EmbeddedPostgres": Server})}})
    assert opened == [str(workspace / "postgres")]
