"""``queuert history``, and the example, as a reader would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queuert.cli import main
from queuert.cli.failures import Exit
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.history_support import add_chains, archived, left

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PRINTS = """\
archived 3 chains with 3 jobs and 9 events; kept 0
greet completed 2
greet failed 1
"""


def call(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **spark_environment(), "QUEUERT_URL": dsn}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=200, check=False,
    )  # fmt: skip


def test_run_and_report(dsn: str, tmp_path: Path) -> None:
    add_chains(dsn, 3)
    output = tmp_path / "out"
    options = ["--older-than", "90m", "--cores", "2", "--partitions", "1", "--json"]
    done = call(dsn, "queuert", "history", "run", "--output", str(output), *options)
    assert done.returncode == Exit.DONE, done.stderr
    told = json.loads(done.stdout)
    assert [(one["chains"], one["jobs"], one["kept"]) for one in told["archives"]] == [(2, 3, {})]
    assert archived(output) == ["c2", "c3"]
    assert left(dsn) == ["c1"]
    assert "3 jobs written and counted" in done.stderr
    assert (output / "report.html").read_text().startswith("<!doctype html>")


def test_example(dsn: str, tmp_path: Path) -> None:
    done = call(dsn, "examples.spark_nightly_archive", str(tmp_path / "out"))
    assert (done.stdout, done.returncode) == (PRINTS, 0), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--output", "x"], "--older-than"),
        (["archive", "--output", "x", "--older-than", "30"], "30 is not an age such as 90s, 15m, 2h or 30d"),
        (["rollup"], "--output"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", *arguments]) == Exit.USAGE
    assert message in capsys.readouterr().err


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["history", "report", "--output", "x"]) == Exit.UNAVAILABLE
    assert "pip install 'queuert[spark]'" in capsys.readouterr().err
