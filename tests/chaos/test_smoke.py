"""Small runs of chaos on every store: nothing is lost, nothing done twice, and enough has happened."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[2]
# As long as its faults take one after the other: clients that have made all their starts can no longer be killed.
_SMALL = ("--jobs", "300", "--faults", "24", "--seconds", "20", "--workload", "tests.chaos.workload:workload")
_RUNS = {"postgres": ("--seed", "20"), "redis": ("--seed", "4", *_SMALL), "sqlite": ("--seed", "4", *_SMALL)}


class Run:
    """One run of the command, under way. Its logs and records stay with the test's other files."""

    def __init__(self, store: str, directory: Path) -> None:
        self.timeline = directory / "timeline.html"
        self._report = directory / "report.json"
        files = (
            "--report",
            str(self._report),
            "--timeline",
            str(self.timeline),
            "--directory",
            str(directory / "kept"),
        )
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "queuert",
                "dev",
                "chaos",
                "--profile",
                "smoke",
                "--store",
                store,
                *_RUNS[store],
                *files,
            ],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def report(self) -> tuple[dict[str, Any], str]:
        """Wait for its end: the report, and what it said."""
        said, _ = self._process.communicate()
        assert self._report.exists(), said
        report: dict[str, Any] = json.loads(self._report.read_text(encoding="utf-8"))
        assert self._process.returncode == report["exit_code"], said
        return report, said

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.terminate()
        with self._process:  # Waits, and closes the pipe.
            pass


@pytest.mark.parametrize("store", [pytest.param("postgres", marks=pytest.mark.quick), "redis", "sqlite"])
def test_everything_holds(tmp_path: Path, store: str) -> None:
    with closing(Run(store, tmp_path)) as run:
        report, said = run.report()
    assert report["exit_code"] == 0, said
    assert report["violations"].keys() >= {"I1", "I5", "I8", "I29"}
    assert not any(report["violations"].values())
    page = run.timeline.read_text(encoding="utf-8")
    assert page.count("<rect") > len(report["faults"])
