"""``queuert events``: what happened, and how much of it is written and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.cli import events, main
from queuert.state.postgres import event_log
from queuert.state.sqlite import SQLiteState

number = JobType("number", input=int, output=int)
other = JobType("other", input=int, output=int)
Run = Callable[..., str]


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JobTypes(number, other)) as client:
        yield client


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; its output."""
    monkeypatch.setenv("QUEUERT_URL", dsn)

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["events", *arguments]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return call


def document(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_lists(client: Client, run: Run) -> None:
    chains = [client.start_chain(number, 1), client.start_chain(other, 1)]
    client.cancel_chains([chains[0]], reason="not wanted")
    text = run("list")
    assert [line.split()[2:4] for line in text.splitlines()[1:]] == [
        ["cancelled", "cancelled"], ["created", "ready"], ["created", "ready"],
    ]  # fmt: skip
    assert "not wanted" in text
    assert document(run, "list", "--type", "other")["items"][0]["job_id"] == chains[1].id
    assert len(document(run, "list", "--chain", chains[0].id, "--kind", "created")["items"]) == 1
    page = document(run, "list", "--limit", "2", "--oldest-first")
    assert [one["job_id"] for one in page["items"]] == [chain.id for chain in chains]
    rest = document(run, "list", "--oldest-first", "--cursor", page["next_cursor"])
    assert [one["kind"] for one in rest["items"]] == ["cancelled"]


def test_events_of_a_chain_that_was_deleted(client: Client, run: Run) -> None:
    chain = client.start_chain(number, 1)
    client.delete_chain(chain)
    assert run("list", "--chain", chain.id).count("created") == 1
    assert run("list", "--chain", chain.id, "--kind", "completed") == "none\n"
    assert "created" in run("tail", "--chain", chain.id, "--once")
    assert run("tail", "--chain", chain.id, "--kind", "completed", "--once") == ""


def test_a_chain_whose_events_are_not_kept_exists(client: Client, run: Run) -> None:
    run("set-level", "off", "--type", "number")
    assert run("list", "--chain", client.start_chain(number, 1).id) == "none\n"


def test_tail(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on where it was, until it is interrupted."""
    first, second = client.start_chain(number, 1), client.start_chain(other, 2)
    late: list[str] = []

    def wait(_: float) -> None:
        if late:
            raise KeyboardInterrupt
        late.append(client.start_chain(number, 3).id)

    assert run("tail", "--once").count("created") == 2
    monkeypatch.setattr(events, "sleep", wait)
    shown: list[str] = []
    monkeypatch.setattr(events, "_print_lines", lambda found, args: shown.extend(one.job_id for one in found))
    run("tail", code=130)
    assert shown == [first.id, second.id, *late]
    shown.clear()
    run("tail", "--type", "other", code=130)
    assert shown == [second.id]


def test_levels_and_days(client: Client, run: Run) -> None:
    run("set-level", "off", "--type", "number")
    run("set-level", "terminal")
    run("set-retention", "3")
    log = client.get_event_log()
    assert (log.level, log.levels, log.keep_days) == ("terminal", {"number": "off"}, 3)
    reported = document(run, "status")
    assert (reported["level"], reported["levels"], reported["keep_days"]) == ("terminal", {"number": "off"}, 3)
    assert reported["partitions"][-1]["name"] == "job_event_default"
    assert "job_event_default" in run("status")
    run("set-level", "default", "--type", "number")
    assert client.get_event_log().levels == {}
    assert "pass job_types=" in run("set-level", "default", code=2)
    assert "must be an integer of 1 or more, got 0" in run("set-retention", "0", code=2)
    assert "max_events must be None for this store" in run("set-retention", "--max-events", "5000", code=2)


def test_maintenance(run: Run) -> None:
    document(run, "maintain")  # The database may be of yesterday.
    assert document(run, "maintain") == {"made": [], "dropped": [], "postponed": [], "deleted": 0}


def test_maintenance_deletes_all_old_events_however_many(
    run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One call of the store deletes so many; what runs once a day must not fall behind what a day brings."""
    monkeypatch.setattr(event_log, "CHUNK", 2)
    monkeypatch.setattr(event_log, "STEPS", 3)
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute(
            "INSERT INTO queuert.job_event "
            "(happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt) "
            "SELECT '1999-01-01', 'created', 'ready', 'a', 'a', 0, 'work', 'work', 0 FROM generate_series(1, 20)"
        )
    assert main(["events", "maintain", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["deleted"] == 20
    assert [line.rpartition(", ")[2] for line in said.err.splitlines()] == [
        f"{deleted} events deleted" for deleted in (6, 12, 18)
    ]


def test_the_number_of_events_on_redis(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUERT_URL", redis_url)
    assert main(["events", "set-retention", "--max-events", "5000"]) == 0
    assert "max_events  5000" in capsys.readouterr().out
    assert main(["events", "status"]) == 0
    assert ["max_events", "5000"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert main(["events", "set-retention"]) == 2
    assert "needs days=, max_events=, or both" in capsys.readouterr().err


def test_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands work on SQLite as on Postgres."""
    path = tmp_path / "jobs.db"
    with Client(SQLiteState(path), JobTypes(number)) as client:
        chain = client.start_chain(number, 1)
        client.cancel_chain(chain)
    monkeypatch.setenv("QUEUERT_URL", f"sqlite:///{path}")
    assert main(["events", "tail", "--once", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["job_id"]) for one in shown] == [("created", chain.id), ("cancelled", chain.id)]
    assert main(["events", "list", "--kind", "created"]) == 0
    assert chain.id in capsys.readouterr().out
    assert main(["events", "set-level", "off"]) == 0
    assert main(["events", "set-retention", "3"]) == 0
    assert main(["events", "maintain"]) == 0
    capsys.readouterr()
    assert main(["events", "status", "--json"]) == 0
    log = json.loads(capsys.readouterr().out)
    assert (log["level"], log["keep_days"], log["partitions"]) == ("off", 3, [])
