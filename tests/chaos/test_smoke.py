"""Small runs of chaos on every store: nothing is lost, nothing done twice, and enough has happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuert.cli import main
from queuert.testing.chaos import PROFILES, ChaosSettings, run_chaos

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]


def test_postgres(tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    settings = ChaosSettings(PROFILES["smoke"], seed=20, store="postgres")
    report = run_chaos(settings, timeline_file=page)
    assert report.exit_code == 0, report.summary()
    assert page.read_text(encoding="utf-8").count("<rect") > len(report.faults)


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_other_stores(store: str, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    options = ["--jobs", "400", "--faults", "18", "--seconds", "8", "--seed", "4", "--report", str(report_file)]
    code = main(["chaos", "--store", store, *options, "--workload", "tests.chaos.workload:workload"])
    report = json.loads(report_file.read_text(encoding="utf-8"))
    assert code == report["exit_code"] == 0, report
    assert report["violations"].keys() >= {"I1", "I5", "I8", "I29"}
