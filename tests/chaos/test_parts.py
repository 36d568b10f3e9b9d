"""The parts of a run by themselves: records, processes, the append-only file, the report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queuert.embedded import EmbeddedServerError
from queuert.embedded.server import wait_until
from queuert.errors import ConfigurationError
from queuert.state.redis import RedisState
from queuert.testing.chaos import PROFILES, ChaosSettings, memory_growth, run_chaos
from queuert.testing.chaos import fleet as fleet_module
from queuert.testing.chaos.history import History
from queuert.testing.chaos.loading import load_records
from queuert.testing.chaos.metrics import measures, recoveries, spread
from queuert.testing.chaos.plan import make_plan
from queuert.testing.chaos.processes import ChaosError, Nursery
from queuert.testing.chaos.records import Records, Tail, read
from queuert.testing.chaos.report import ChaosReport
from queuert.testing.chaos.stores import owned_store
from queuert.testing.chaos.stores.postgres import OwnedPostgres
from queuert.testing.chaos.stores.redis import OwnedRedis, _changes, commands_in
from queuert.testing.chaos.stores.sqlite import OwnedSQLite
from queuert.testing.chaos.takeovers import takeovers
from queuert.testing.chaos.timeline import timeline
from queuert.testing.chaos.workload import load
from queuert.testing.conformance.builders import claim_one, complete, job, start
from tests.chaos.support import healthy
from tests.conftest import server_is_missing

pytestmark = pytest.mark.timeout(180)


def report(**fields: Any) -> ChaosReport:
    """A report in which all is well, but for what is given."""
    given: dict[str, Any] = {
        "profile": "smoke", "seed": 1, "store": "postgres", "plan": "", "seconds": 1.0, "drain_seconds": 0.0,
        "faults": {}, "missed": {}, "violations": {"I1": []}, "probes": {"faults": 2}, "gates": {"faults": 2},
        "measures": {"drain": 1.0}, "limits": {"drain": 60.0}, "figures": {},
    }  # fmt: skip
    return ChaosReport(**(given | fields))


def test_exit_codes() -> None:
    assert report().exit_code == 0
    assert report(violations={"I1": ["x was acknowledged and is not there"]}).exit_code == 1
    assert report(probes={"faults": 1}).exit_code == 3
    assert report(measures={"drain": 61.0}).exit_code == 3
    assert report(violations={"I1": ["x"]}, probes={"faults": 1}).exit_code == 1


def test_a_report_names_what_is_broken() -> None:
    broken = report(violations={"I1": ["x was lost"]}, probes={"faults": 1})
    for text in ("I1 BROKEN", "x was lost", "TOO FEW"):
        assert text in broken.summary()
    assert "gates: 1 of 2 reached" in broken.summary()
    assert "TOO LONG" in report(measures={"drain": 61.0}).summary()
    leaks = report(measures={memory_growth.FILES: 1.0}, limits={memory_growth.FILES: 0.0})
    assert "TOO MUCH" in leaks.summary()
    assert leaks.exit_code == 3
    found = json.loads(broken.to_json())
    assert (found["exit_code"], found["silent"], found["violations"]) == (1, {"faults": 1}, {"I1": ["x was lost"]})


def test_records_and_their_tail(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path, lambda line: line.get("n"))
    records = Records(path)
    records.add(n=1, text="one")
    found = tail.wait_for(1, 10.0)
    assert found is not None
    assert found["text"] == "one"
    assert tail.wait_for(2, 0.0) is None
    tail.close()
    records.close()
    assert [line["n"] for line in read(path)] == [1]


def patient_client(directory: Path) -> dict[str, Any]:
    """Settings of a client that has nothing to do for a long time."""
    return {
        "client": 0, "directory": str(directory), "workload": None, "store": "sqlite", "began": 0.0,
        "url": f"sqlite:///{directory / 'jobs.db'}",
        "ops": [{"number": 0, "at": 4e9, "how": "start", "ids": ["x"]}],
    }  # fmt: skip


def test_children_are_reported_of_and_end_with_their_nursery(tmp_path: Path) -> None:
    """One is killed, another lives until the nursery closes."""
    settings = patient_client(tmp_path)
    nursery = Nursery()
    killed, left = (nursery.start("client", settings, tmp_path / "log") for _ in range(2))
    killed.send(signal.SIGKILL)
    assert killed.wait(20.0)
    assert killed.code == -signal.SIGKILL
    assert left.alive
    nursery.close()
    assert not Path(f"/proc/{left.pid}").exists()


def test_a_child_that_is_stopped_as_soon_as_it_is_there_ends(tmp_path: Path) -> None:
    """A signal is not lost, however early it comes after the fork."""
    settings = patient_client(tmp_path)
    nursery = Nursery()
    for _ in range(30):
        child = nursery.start("client", settings, tmp_path / "log")
        child.send(signal.SIGTERM)
        assert child.wait(20.0)
        assert child.code == 0
    nursery.close()


def test_a_nursery_whose_zygote_has_died_is_closed_all_the_same(tmp_path: Path) -> None:
    nursery = Nursery()
    nursery.start("client", patient_client(tmp_path), tmp_path / "log").kill()
    os.kill(nursery._zygote.pid, signal.SIGKILL)
    os.waitid(os.P_PID, nursery._zygote.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ChaosError, match="has ended"):
        nursery.start("client", patient_client(tmp_path), tmp_path / "log")
    nursery.close()
    assert nursery._zygote.returncode == -signal.SIGKILL
    assert nursery._zygote.stdout is not None
    assert nursery._zygote.stdout.closed


def test_a_directory_is_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "client-0.jsonl").touch()
    with pytest.raises(ConfigurationError, match="must be empty"):
        run_chaos(ChaosSettings(PROFILES["smoke"], store="sqlite", directory=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["client-0.jsonl"]


def test_a_call_without_an_end_is_in_doubt(tmp_path: Path) -> None:
    records = Records(tmp_path / "client-0.jsonl")
    common = {"op": 1, "how": "start", "key": "", "type": "t"}
    records.add(m="begin", call="a", ids=["one"], **common)
    records.add(m="end", call="a", outcome="ack", results=[["one", "one", False]], error="")
    records.add(m="begin", call="b", ids=["two"], **common)
    history = History()
    load_records(history, tmp_path)
    found = history.rows("SELECT id, outcome, result_id FROM a ORDER BY id")
    assert [tuple(row) for row in found] == [("one", "ack", "one"), ("two", "unknown", None)]


def test_a_history_is_kept(tmp_path: Path) -> None:
    planted = healthy()
    for _ in range(2):
        planted.history.save(tmp_path / "history.db")
    with closing(sqlite3.connect(tmp_path / "history.db")) as kept:
        assert kept.execute("SELECT count(*) FROM s").fetchone() == (2,)


def aof(*commands: str) -> bytes:
    """Commands as an append-only file has them."""
    made = b""
    for command in commands:
        if command.startswith("#"):
            made += f"{command}\r\n".encode()
            continue
        words = command.split()
        made += f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words)
    return made


def test_changes_from_an_append_only_file() -> None:
    """One change a script, however many commands it has; what is no change of status or token is none."""
    data = aof(
        "#TS:100", "MULTI", "HSET p:j:a status ready attempt 0", "HSET p:j:a due 5000000", "EXEC",
        "#TS:101", "MULTI", "HSET p:j:a status running attempt 1 token t1 started 101000000", "EXEC",
        "HSET p:j:a leased 7", "#TS:103", "MULTI", "HSET p:j:a status ready", "HDEL p:j:a token", "EXEC",
        "DEL p:j:a",
    )  # fmt: skip
    found = list(_changes("p:", commands_in(data)))
    assert [(one["kind"], one["old_status"], one["new_status"], one["at"]) for one in found] == [
        ("insert", None, "ready", 101.0),
        ("update", "ready", "running", 101.0),
        ("update", "running", "ready", 104.0),
        ("delete", "ready", None, 104.0),
    ]
    assert len({one["tx"] for one in found}) == 4
    assert (found[1]["new_token"], found[1]["new_attempt"], found[2]["new_token"]) == ("t1", 1, None)


def test_the_clock_in_an_append_only_file() -> None:
    """What has no time of its own was between two times of the clock; the seconds of the file are the last resort."""
    data = aof(
        "#TS:100", "SET chaos:clock 100250000", "HSET p:j:a status ready attempt 0", "SET chaos:clock 100270000",
        "HSET p:j:a status scheduled", "HSET p:j:b status ready attempt 0",
        "HSET p:j:a status completed finished 100280000",
        "SET chaos:clock 100300000", "DEL p:j:b",
    )  # fmt: skip
    found = [(one["job_id"], one["began"], one["at"]) for one in _changes("p:", commands_in(data))]
    assert found == [
        ("a", 100.25, 100.27), ("a", 100.27, 100.3), ("b", 100.27, 100.3), ("a", 100.28, 100.28), ("b", 100.3, 101.0),
    ]  # fmt: skip


def test_a_file_that_was_cut_short_is_read_to_its_end() -> None:
    data = aof("SET a b")
    assert [words for _, _, words in commands_in(data + b"*2")] == [["SET", "a", "b"]]


def test_who_holds_the_write_lock_of_a_file(tmp_path: Path) -> None:
    store = OwnedSQLite(tmp_path)
    store.start()
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as writer:
        writer.execute("SELECT count(*) FROM queuert_job").fetchone()
        assert not store.waits_for(os.getpid())
        writer.execute("BEGIN IMMEDIATE")
        assert store.waits_for(os.getpid())
        assert not store.waits_for(os.getppid())
        store.look_at_writer()
        writer.execute("ROLLBACK")
        assert not store.waits_for(os.getpid())
    store.break_it("lock file", 0.0)
    store.close()
    history = History("sqlite")
    store.collect(history)
    assert store.broken_since is not None
    assert {row["pid"] for row in history.rows("SELECT pid FROM holds WHERE ended >= began")} == {os.getpid()}
    history.close()


def test_a_fault_at_a_server_that_nobody_has_reached_yet(tmp_path: Path) -> None:
    """There is no backend of a worker or client that could be killed."""
    store = OwnedPostgres(tmp_path, durable=False)
    store.start()
    try:
        assert wait_until(lambda: store.sessions() == 0, 60.0)
        # A session by which the run looked may not have ended yet.
        with store._stranger():
            assert store.break_it("kill backend", 0.5) == (None, "no backend to kill")
    finally:
        store.close()


async def test_what_a_worker_holds_in_redis(tmp_path: Path) -> None:
    """By the number in its name; what has ended, or is another's by now, is not its any more."""
    owned = OwnedRedis(tmp_path, durable=False)
    try:
        await asyncio.to_thread(owned.start)
        store = RedisState(owned.url).async_store(max_connections=2)
        await store.open()
        ids = await start(store, job(), job())
        claimed = [await claim_one(store, holder=holder) for holder in ("chaos-7-x", "chaos-77-y")]
        assert [owned.leases_of(number) for number in (7, 77, 777)] == [[(ids[0], 1)], [(ids[1], 1)], []]
        assert owned.open_jobs() == 2
        await store.finish([complete(claimed[0])])
        assert [owned.leases_of(number) for number in (7, 77)] == [[], [(ids[1], 1)]]
        assert owned.open_jobs() == 1
        await store.aclose()
    except EmbeddedServerError as error:
        server_is_missing(error)
    finally:
        owned.close()


def test_figures() -> None:
    planted = healthy()
    planted.history.add("outages", [{"began": 990.0, "ended": 1_000.0, "down": 1}])
    assert recoveries(planted.history) == [3.0]
    assert measures(planted.history, 2.0)["first completion after the server serves again, 95 of 100"] == 3.0
    # It was down again before anything was completed, and then once more for less than a completion takes.
    planted.history.add("outages", [{"began": 1_001.0, "ended": 1_002.0, "down": 1}])
    assert recoveries(planted.history) == [1.0]
    # While it is paused, or locked, it does not serve either.
    planted.history.add("outages", [{"began": 1_002.5, "ended": 1_002.75, "down": 0}])
    assert recoveries(planted.history) == [0.75]
    assert spread([1.0, 2.0, 3.0]) == {"count": 3, "p50": 2.0, "p95": 3.0, "p99": 3.0, "max": 3.0}
    assert spread([]) == {"count": 0}


_BLOCKED = [
    ("x", {"pid": 9, "job_id": "z", "attempt": 1, "mark": mark, "at": at})
    for mark, at in (("blockedbegan", 1_006.0), ("blockedended", 1_007.0))
]


@pytest.mark.parametrize(
    ("away", "somebody"),
    [
        ([], 1.5),
        ([("away", {"slot": 1, "began": 1_000.0, "ended": 1_005.2})], 0.8),
        ([("away", {"slot": 3, "began": 1_000.0, "ended": 1_009.0})], 1.5),
        ([("outages", {"began": 1_006.4, "ended": 1_006.5, "down": 1})], 0.9),
        ([("ends", {"pid": 7, "at": 1_006.0})], 0.5),
        ([("x", {"pid": 7, "job_id": f"y{n}", "attempt": 1, "mark": "began", "at": 1_006.2}) for n in range(8)], 0.7),
        ([("x", {"pid": 7, "job_id": f"y{n}", "attempt": 1, "mark": "began", "at": 1_006.2}) for n in range(7)], 1.5),
        ([*_BLOCKED, ("holds", {"pid": 9, "began": 1_006.1, "ended": 1_006.4})], 1.2),
        ([*_BLOCKED, ("holds", {"pid": 8, "began": 1_006.1, "ended": 1_006.4})], 1.5),
        ([("holds", {"pid": 9, "began": 1_006.1, "ended": 1_006.4})], 1.5),
    ],
    ids=[
        "none",
        "frozen",
        "another is frozen",
        "no store",
        "dead",
        "full",
        "nearly full",
        "blocked with the lock",
        "blocked without",
        "not blocked",
    ],
)
def test_take_overs_and_who_could_have_come(away: list[tuple[str, dict[str, Any]]], somebody: float) -> None:
    """A lease ended at 1005.5, and the job was claimed at 1007; of two slots, one has a worker."""
    planted = healthy()
    started = {"name": "WorkerStarted", "at": 900.0}
    planted.history.add("p", [started | {"pid": 7, "slot": 1}, started | {"pid": 8, "slot": 3}])
    planted.history.add("ends", [{"pid": 8, "at": 950.0}])
    for table, row in away:
        planted.history.add(table, [row])
    [found] = takeovers(planted.history)
    assert round(found.waited, 3) == 1.5
    assert round(found.somebody, 3) == somebody
    assert not found.first


def test_the_end_of_who_makes_room_for_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is written down as every other, or it would count as somebody who could have come, to the end of the run."""
    monkeypatch.setattr(fleet_module, "faketime_library", lambda: "libc.so.6")  # The shift itself is not looked at.
    settings = ChaosSettings(PROFILES["smoke"], store="sqlite", jobs=0, faults=0, directory=tmp_path)
    store = owned_store("sqlite", tmp_path, durable=False)
    fleet = fleet_module.Fleet(settings, make_plan(settings), store, tmp_path)
    try:
        store.start()
        fleet.start()
        place = fleet.workers[0]
        with place.held() as first:
            place.kept = False
            first.kill()
            second = fleet.start_with_clock(place, 60.0)
        assert place.child is second
        # Clients, who have nothing to do here, end by themselves.
        ends = [line for line in read(tmp_path / "ends.jsonl") if line["role"] == place.role]
        assert [line["pid"] for line in ends if line["slot"] == place.number] == [first.pid]
    finally:
        fleet.close()
        store.close()


def test_a_fault_gets_no_process_that_has_ended(tmp_path: Path) -> None:
    """It waits for the successor: a signal to the dead would be taken for a stop that was not clean."""
    settings = ChaosSettings(PROFILES["smoke"], store="sqlite", jobs=0, faults=0, directory=tmp_path)
    store = owned_store("sqlite", tmp_path, durable=False)
    fleet = fleet_module.Fleet(settings, make_plan(settings), store, tmp_path)
    try:
        store.start()
        fleet.start()
        place = fleet.workers[0]
        with place.held() as first:
            first.kill()
        with place.held() as second:
            assert second.alive
            assert second is not first
    finally:
        fleet.close()
        store.close()


def test_a_timeline_shows_each_fault() -> None:
    planted = healthy()
    fault = {"number": 1, "kind": "kill worker", "began": 1_001.0, "ended": 1_002.0, "happened": 1, "detail": "<x>"}
    planted.history.add("f", [fault])
    page = timeline(planted.history, 1_000.0, 1_010.0)
    assert "kill worker at 1.0 s: &lt;x&gt;" in page
    assert "<x>" not in page


@pytest.mark.parametrize("target", ["nowhere:workload", "tests.chaos.workload:nothing", "tests.chaos.workload:double"])
def test_a_workload_that_is_none(target: str) -> None:
    with pytest.raises(ConfigurationError):
        load(target)
