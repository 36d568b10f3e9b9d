"""Notifications by way of a file: between processes, with transactions, and when the file is held or gone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuert.errors import ConfigurationError
from queuert.notify import Notification, Topic
from queuert.notify.sqlite import SQLiteNotify
from queuert.observability.events import ListenerLost, ListenerRestored
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.notifications import KEPT
from queuert.testing.conformance.builders import job
from tests.notify.support import START, Party

NewParty = Callable[[], Party]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def new_file_party(path: Path) -> Iterator[NewParty]:
    parties: list[Party] = []

    def new() -> Party:
        parties.append(Party(SQLiteNotify(path)))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )


@pytest.mark.timeout(START + 60)
def test_a_notification_of_another_process(path: Path, new_file_party: NewParty) -> None:
    heard, _ = new_file_party().listen(Topic.CHAINS)
    program = (
        "import sys; from queuert.notify import Topic; from queuert.notify.sqlite import SQLiteNotify\n"
        "from queuert.notify import listener; from queuert.observability import Observers\n"
        # The program ends with its close, however long it has to wait for the file.
        "listener._LAST_SEND, listener._STOP = 20.0, 40.0\n"
        "notify = SQLiteNotify(sys.argv[1]); notify.open(Observers())\n"
        "notify.publish(Topic.CHAINS, ['from afar']); notify.close()"
    )
    assert run("-c", program, str(path)).stderr == ""
    heard.wait_for("from afar")
    assert heard.notifications == [Notification(Topic.CHAINS, frozenset({"from afar"}))]


@pytest.mark.timeout(START + 60)
def test_a_forked_child_begins_anew(path: Path) -> None:
    done = run(str(Path(__file__).with_name("forking.py")), QUEUERT_URL=str(path))
    assert (done.stdout, done.returncode) == ("child: well\nparent: well\n", 0), done.stderr


def test_notifications_of_a_callers_transaction_come_with_its_commit(path: Path, new_file_party: NewParty) -> None:
    listener = new_file_party()
    heard, _ = listener.listen(Topic.JOBS)
    store = SQLiteState(path).sync_store()
    store.open()
    connection = sqlite3.connect(path)
    for ends in (connection.rollback, connection.commit):
        store.start_jobs([job("work", id=ends.__name__)], connection=connection)
        listener.publish(Topic.JOBS, f"before {ends.__name__}")
        heard.wait_for(f"before {ends.__name__}")
        assert "work" not in heard.keys
        ends()
    heard.wait_for("work")
    connection.close()
    store.close()


def test_notifications_wait_for_a_file_that_is_held(path: Path, new_file_party: NewParty) -> None:
    """Those of this very adapter hear at once, others when the file is free."""
    listener, publisher = new_file_party(), new_file_party()
    far, _ = listener.listen(Topic.JOBS)
    near, _ = publisher.listen(Topic.JOBS)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    publisher.publish(Topic.JOBS, "one")
    near.wait_for("one")
    publisher.publish(Topic.JOBS, "two")
    near.wait_for("two")
    assert far.keys == set()
    holder.execute("ROLLBACK")
    holder.close()
    far.wait_for("one", "two")
    assert publisher.recorder.of(ListenerLost) == []


def test_who_missed_notifications_looks_at_everything(path: Path, new_file_party: NewParty) -> None:
    heard, _ = new_file_party().listen(Topic.LEASES)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    rows = [("x", "jobs", f'["{number}"]') for number in range(KEPT + 2)]
    connection.executemany("INSERT INTO queuert_notification (sender, topic, keys) VALUES (?, ?, ?)", rows)
    connection.execute("DELETE FROM queuert_notification WHERE id < 3")
    connection.execute("COMMIT")
    connection.close()
    heard.wait_for_wildcard()


def test_old_notifications_are_deleted(path: Path, new_file_party: NewParty) -> None:
    party = new_file_party()
    heard, _ = party.listen(Topic.JOBS)
    chains, _ = party.listen(Topic.CHAINS)
    new_file_party().publish(Topic.JOBS, "first")
    heard.wait_for("first")  # Now it looks.
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    rows = [("x", "chains", None)] * (KEPT + 10)
    connection.executemany("INSERT INTO queuert_notification (sender, topic, keys) VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    chains.wait_for_wildcard()
    new_file_party().publish(Topic.JOBS, "last")
    heard.wait_for("last")
    assert connection.execute("SELECT count(*) FROM queuert_notification").fetchone() == (KEPT,)
    connection.close()


def test_a_file_that_cannot_be_used_is_reported_of_and_tried_again(path: Path, new_file_party: NewParty) -> None:
    path.write_bytes(b"this is no database" * 100)
    party = new_file_party()
    heard: list[Notification] = []
    party.adapter.subscribe(Topic.JOBS, heard.append)
    assert "not a database" in party.recorder.wait_for(ListenerLost).error
    assert [party.adapter.healthy] == [False]
    path.unlink()
    party.recorder.wait_for(ListenerRestored)
    assert [party.adapter.healthy] == [True]
    assert Notification(Topic.JOBS, None) in heard


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="belongs to one process"):
        SQLiteNotify(":memory:")
    with pytest.raises(ConfigurationError, match="does not exist"):
        SQLiteNotify(tmp_path / "nowhere" / "queue.db")
    for interval in (0.0, -1.0, 61.0, float("nan")):
        with pytest.raises(ConfigurationError, match="interval"):
            SQLiteNotify(tmp_path / "queue.db", interval=interval)
