"""What ``queuert history`` refuses."""

from __future__ import annotations

import sys

import pytest

from queuert.cli import main
from queuert.cli.exit_codes import Exit

pytestmark = [pytest.mark.spark]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--output", "x"], "--older-than"),
        (["archive", "--output", "x", "--older-than", "30"], "must be an age such as 90s, 15m, 2h or 30d, got 30"),
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
