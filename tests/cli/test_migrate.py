"""``queuert migrate`` on an empty database."""

import json

import psycopg
import psycopg.conninfo
import pytest

from queuert.cli import main
from queuert.migrations import status

UNREACHABLE = "postgresql://me:hunter2@127.0.0.1:1/nowhere"


def tables(dsn: str, schema: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    return {name for (name,) in rows}


def test_there_and_back_again(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", "--url", bare_dsn]) == 1
    before = capsys.readouterr().out
    head = status(bare_dsn).head
    assert "pending: " in before
    assert head in before

    assert main(["migrate", "up", "--url", bare_dsn]) == 0
    assert capsys.readouterr().out == f"schema queuert is at revision {head}: up to date\n"
    assert main(["migrate", "up", "--url", bare_dsn]) == 0
    assert main(["migrate", "status", "--url", bare_dsn]) == 0
    assert "job" in tables(bare_dsn, "queuert")

    assert main(["migrate", "down", "--url", bare_dsn, "--revision", "base", "--yes"]) == 0
    assert "job" not in tables(bare_dsn, "queuert")
    assert main(["migrate", "status", "--url", bare_dsn]) == 1


def test_the_status_is_one_document(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(bare_dsn)
    assert main(["migrate", "status", "--url", bare_dsn, "--json"]) == 1
    before = {"schema": "queuert", "current": None, "head": found.head, "pending": [*found.pending], "moved": None}
    assert json.loads(capsys.readouterr().out) == before
    assert main(["migrate", "up", "--url", bare_dsn]) == 0
    capsys.readouterr()
    assert main(["migrate", "status", "--url", bare_dsn, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**before, "current": found.head, "pending": []}


def test_down_wants_to_be_requested_twice(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "down", "--url", dsn, "--revision", "base"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert "job" in tables(dsn, "queuert")


def test_down_wants_a_revision(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "down", "--url", dsn, "--yes"]) == 2
    assert "--revision" in capsys.readouterr().err


def test_another_schema_and_the_address_from_the_environment(bare_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUERT_URL", bare_dsn)
    assert main(["migrate", "up", "--schema", "elsewhere"]) == 0
    assert "job" in tables(bare_dsn, "elsewhere")
    assert tables(bare_dsn, "queuert") == set()


def test_the_address_may_be_given_as_libpq_does(bare_dsn: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(bare_dsn)
    assert main(["migrate", "up", "--url", psycopg.conninfo.make_conninfo("", **parts)]) == 0
    assert main(["migrate", "status", "--url", bare_dsn.replace("postgresql://", "postgres://", 1)]) == 0


def test_sql_is_printed_and_does_what_up_does(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUEUERT_URL", raising=False)
    assert main(["migrate", "sql", "--schema", "by_hand"]) == 0
    text = capsys.readouterr().out
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(text.encode())
    assert main(["migrate", "status", "--url", bare_dsn, "--schema", "by_hand"]) == 0
    assert "job" in tables(bare_dsn, "by_hand")


def test_stamp_records_and_runs_nothing(bare_dsn: str) -> None:
    assert main(["migrate", "stamp", "--url", bare_dsn]) == 0
    assert main(["migrate", "status", "--url", bare_dsn]) == 0
    assert "job" not in tables(bare_dsn, "queuert")


@pytest.mark.parametrize("action", ["up", "status", "sql"])
def test_an_unknown_revision_is_one_line(action: str, bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    if action == "status":
        assert main(["migrate", "up", "--url", bare_dsn]) == 0
        with psycopg.connect(bare_dsn) as connection:
            connection.execute("UPDATE queuert.alembic_version SET version_num = 'f00d'")
        arguments = ["migrate", "status", "--url", bare_dsn]
    else:
        arguments = ["migrate", action, "--revision", "f00d", "--url", bare_dsn]
    capsys.readouterr()
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("queuert: ")
    assert error.count("\n") == 1
    assert "f00d" in error


def test_a_second_migrator_gives_up_after_the_timeout(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    from queuert import migrations

    with migrations.only_migrator(bare_dsn, "queuert", 1.0):
        assert main(["migrate", "up", "--url", bare_dsn, "--lock-timeout", "0"]) == 1
    assert "another migrator" in capsys.readouterr().err
    # The server gives the lock back when it has noticed that the first one's connection is closed: in a moment.
    assert main(["migrate", "up", "--url", bare_dsn, "--lock-timeout", "30"]) == 0


def test_no_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("QUEUERT_URL", raising=False)
    assert main(["migrate", "status"]) == 2
    error = capsys.readouterr().err
    assert "QUEUERT_URL" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("action", ["up", "status", "stamp"])
def test_unreachable(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", action, "--url", UNREACHABLE]) == 3
    error = capsys.readouterr().err
    assert error.startswith("queuert: ")
    assert error.count("\n") == 1
    assert "hunter2" not in error


@pytest.mark.parametrize("url", ["mysql://me:hunter2@host/db", "host=h password=hunter2 nonsense=1", "hunter2"])
def test_an_address_that_makes_no_sense(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", "--url", url]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "hunter2" not in error


def test_a_schema_name_that_is_not_allowed(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "up", "--url", bare_dsn, "--schema", 'a"b']) == 2
    assert "schema must be" in capsys.readouterr().err
