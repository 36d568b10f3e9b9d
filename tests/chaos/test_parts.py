"""The parts of a run by themselves: records, processes, the append-only file, the report."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from queuert.errors import ConfigurationError
from queuert.testing.chaos.figures import recoveries, spread, takeovers
from queuert.testing.chaos.history import History
from queuert.testing.chaos.loading import load_records
from queuert.testing.chaos.processes import Nursery
from queuert.testing.chaos.records import Records, Tail, read
from queuert.testing.chaos.report import ChaosReport
from queuert.testing.chaos.stores.redis import _changes, commands_in
from queuert.testing.chaos.timeline import timeline
from queuert.testing.chaos.workload import load
from tests.chaos.support import healthy


def report(**fields: Any) -> ChaosReport:
    """A report in which all is well, but for what is given."""
    given: dict[str, Any] = {
        "profile": "smoke", "seed": 1, "store": "postgres", "plan": "", "seconds": 1.0, "drain_seconds": 0.0,
        "faults": {}, "missed": {}, "violations": {"I1": []}, "probes": {"faults": 2}, "gates": {"faults": 2},
        "figures": {},
    }  # fmt: skip
    return ChaosReport(**(given | fields))


def test_exit_codes() -> None:
    assert report().exit_code == 0
    assert report(violations={"I1": ["x was acknowledged and is not there"]}).exit_code == 1
    assert report(probes={"faults": 1}).exit_code == 3
    assert report(violations={"I1": ["x"]}, probes={"faults": 1}).exit_code == 1


def test_a_report_names_what_is_broken() -> None:
    broken = report(violations={"I1": ["x was lost"]}, probes={"faults": 1})
    for text in ("I1 BROKEN", "x was lost", "TOO FEW"):
        assert text in broken.summary()
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


def test_children_are_told_of_and_end_with_their_nursery(tmp_path: Path) -> None:
    """One is killed, another lives until the nursery closes."""
    settings = {
        "client": 0, "directory": str(tmp_path), "workload": None, "store": "sqlite", "began": 0.0,
        "url": f"sqlite:///{tmp_path / 'jobs.db'}",
        "ops": [{"number": 0, "at": 1e12, "how": "start", "ids": ["x"]}],
    }  # fmt: skip
    nursery = Nursery()
    killed, left = (nursery.start("client", settings, tmp_path / "log") for _ in range(2))
    killed.send(signal.SIGKILL)
    assert killed.wait(20.0)
    assert killed.code == -signal.SIGKILL
    assert left.alive
    nursery.close()
    assert not Path(f"/proc/{left.pid}").exists()


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


def test_a_file_that_was_cut_short_is_read_to_its_end() -> None:
    data = aof("SET a b")
    assert [words for _, _, words in commands_in(data + b"*2")] == [["SET", "a", "b"]]


def test_figures() -> None:
    planted = healthy()
    assert [round(seconds, 3) for seconds in takeovers(planted.history)] == [1.5]
    planted.history.add("f", [{"kind": "kill postgres", "began": 0.0, "ended": 9_999.0, "happened": 1}])
    assert takeovers(planted.history) == []
    planted.history.add("serving", [{"at": 1_000.0}])
    assert recoveries(planted.history) == [3.0]
    assert spread([1.0, 2.0, 3.0]) == {"count": 3, "p50": 2.0, "p95": 3.0, "max": 3.0}
    assert spread([]) == {"count": 0}


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
