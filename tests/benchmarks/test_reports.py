"""The three reports of a run."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import report_html, report_text
from benchmarks.arithmetic import Spread
from benchmarks.machine import machine
from benchmarks.results import Run, as_json
from benchmarks.targets import Target, Verdict, to, verdicts
from tests.benchmarks.building import BARE, OURS, PEER, outcome, run_of, series

_VERDICTS = [
    Verdict("ours <to> the ceiling", Spread(0.5, 0.4, 0.7), ">= 0.6", reached=False),
    Verdict("ours to whoever failed", None, ">= 1", reached=False),
]


def _run() -> Run:
    broken = series(PEER, label="broken", error="<no> such module")
    return run_of(outcome(series(OURS, 100.0, 300.0), series(BARE, 200.0, 200.0), series(PEER, 50.0, 60.0), broken))


def test_the_text_has_medians_spreads_and_ratios() -> None:
    text = report_text.text(_run(), _VERDICTS)
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ") and line.split()}
    assert rows["queuert"].split()[1:3] == ["200", "100-300"]
    assert rows["bare"].split()[1:5] == ["200", "200-200", "1", "(0.5-1.5)"]
    assert "FAILED: <no> such module" in rows["broken"]
    targets = text.partition("Targets")[2]
    assert [line.split() for line in targets.splitlines()[1:3]] == [
        ["not", "reached", "0.5", "(0.4-0.7)", "(>=", "0.6)", "ours", "<to>", "the", "ceiling"],
        ["not", "measured", "-", "(>=", "1)", "ours", "to", "whoever", "failed"],
    ]


def test_a_quick_run_judges_nothing() -> None:
    """It has one round of few jobs: the ratio is shown, and no verdict."""
    unjudged = verdicts(_run().outcomes, [Target("ours to the ceiling", to("drain", "bare"), least=0.1)], judged=False)
    text = report_text.text(_run(), unjudged).partition("Targets")[2]
    assert " ".join(text.splitlines()[1].split()) == "quick: not judged 1 (0.5-1.5) (>= 0.1) ours to the ceiling"
    page = report_html.page(_run(), unjudged)
    assert "<td>1 (0.5-1.5)</td>" in page
    assert '<td class="">quick: not judged</td>' in page
    [reported] = as_json(_run(), unjudged)["targets"]
    assert (reported["reached"], reported["value"]["median"]) == (None, 1.0)


@pytest.mark.parametrize(("options", "word"), [(["--quick"], "quick: not judged"), ([], "reached")])
def test_the_command_judges_unless_it_is_quick(
    options: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(outcome(series(OURS, 100.0), series(PEER, 50.0), name="start-single"))
    monkeypatch.setattr(command, "_measured", lambda *_: run)
    assert command.main(["--out", str(tmp_path), *options]) == 0
    assert f"  {word} " in capsys.readouterr().out.partition("Targets")[2]


def test_the_json_can_be_read_back() -> None:
    read = json.loads(json.dumps(as_json(_run(), _VERDICTS)))
    ours, _bare, rival, broken = read["scenarios"][0]["results"]
    assert ours["rate"] == {"median": 200.0, "low": 100.0, "high": 300.0}
    assert [one["rate"] for one in ours["rounds"]] == [100.0, 300.0]
    assert rival["ours_to_this"] == {"median": 3.5, "low": 2.0, "high": 5.0}
    assert broken["error"] == "<no> such module"
    assert broken["rounds"] == []
    assert [one["value"] for one in read["targets"]] == [{"median": 0.5, "low": 0.4, "high": 0.7}, None]


def test_the_page_stands_alone() -> None:
    page = report_html.page(_run(), _VERDICTS)
    assert not re.search(r"(?:src|href)\s*=|https?:|@import|url\(", page)
    assert "&lt;no&gt; such module" in page
    assert "ours &lt;to&gt; the ceiling" in page


def test_the_charts_are_wellformed_and_to_scale() -> None:
    chart = re.findall(r"<svg.*?</svg>", report_html.page(_run(), []), re.DOTALL)
    assert len(chart) == 1
    widths = {
        bar.attrib["class"]: float(bar.attrib["width"])
        for bar in ElementTree.fromstring(chart[0]).iter()
        if bar.tag == "rect"
    }
    assert set(widths) == {"ours", "bare", "peer"}
    assert abs(widths["ours"] - widths["bare"]) < 0.2
    assert abs(widths["ours"] / widths["peer"] - 200 / 55) < 0.05


def test_the_machine_is_not_named() -> None:
    reported = machine()
    assert reported["cores"] > 0
    assert socket.gethostname() not in json.dumps(reported)
