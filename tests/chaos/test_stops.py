"""A worker that does not stop is killed by the run, which keeps what it was at, and tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from queuert.embedded.server import wait_until
from queuert.testing.chaos import PROFILES, ChaosSettings, run_chaos, stops
from queuert.testing.chaos.faults import INJECTORS, Scene
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.plan import Fault, Op, Plan
from tests.chaos.hanging import HUNG

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]


@pytest.fixture
def hanging_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, one job that makes it hang, and a stop that does not wait for long."""
    monkeypatch.setenv(HUNG, str(tmp_path / "hung"))
    monkeypatch.setattr(stops, "STOPPING", 1.0)
    stop_worker = INJECTORS["stop worker"]

    def stop_hung_worker(scene: Scene, fault: Fault) -> str:
        if not wait_until((tmp_path / "hung").exists, 60.0):
            raise Missed("no worker hangs")
        return stop_worker(scene, fault)

    monkeypatch.setitem(INJECTORS, "stop worker", stop_hung_worker)
    start = Op(0, 0.0, "custom", ("hangs",))
    faults = (Fault(0, 0.0, "stop worker", 0, 0.5),)
    monkeypatch.setattr("queuert.testing.chaos.run.make_plan", lambda settings: Plan(((start,),), faults))


@pytest.mark.usefixtures("hanging_plan")
def test_a_report_has_the_stacks_of_a_worker_that_does_not_stop(tmp_path: Path) -> None:
    profile = replace(PROFILES["smoke"], workers=1, clients=1, jobs=1, faults=1, seconds=1.0)
    settings = ChaosSettings(profile, store="sqlite", workload="tests.chaos.hanging:workload")
    report = run_chaos(settings, report_file=tmp_path / "report.json")
    assert report.exit_code == 1
    hang = report.hangs[0]  # On a crowded machine the last stop may take a second as well.
    assert (hang.slot, hang.kind) == (0, "stop worker")
    assert hang.pid in {int(said.split()[1]) for said in report.violations["I25"]}
    threads, _, tasks = hang.stacks.partition("--- tasks of")
    assert "in block_for_ever" in threads
    assert "Task queuert-claimer" in tasks
    assert "in SupervisedLoop._run" in tasks
    assert any("AttemptStarted: job_id hangs" in event for event in hang.events)
    assert "in block_for_ever" in report.summary()
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["hangs"][0]["stacks"] == hang.stacks
