"""The runner of all tests: what fails is run again, alone; what passes then is unsteady; the rest has failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.run_tests import MOST_AGAIN, MOST_UNSTEADY, Outcome, Part, Run, steady

ROOT = Path(__file__).resolve().parents[2]

PLUGINS = ("-p", "tests.support.record", "-p", "xdist", "-p", "no:cacheprovider")
PYTEST = (sys.executable, "-m", "pytest", *PLUGINS)


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no plugin but those that are named: to import all of them takes longer than these tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


UNSTEADY = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_unsteady(number):
    seen = pathlib.Path(f"seen{{number}}")
    print("it was", seen.exists())
    if not seen.exists():
        seen.touch()
        assert False, "for the first time"
"""

FAILING = """
import os

def test_passes():
    pass

def test_fails():
    assert False

def test_ends_its_process():
    os._exit(1)
"""


def outcome_of(
    root: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...] = (), **files: str
) -> tuple[Outcome, str]:
    """Run the parts `first` and `second`, a file each, in processes of their own."""
    for name, text in files.items():
        (root / f"test_{name}.py").write_text(text)
    (root / "pytest.ini").write_text("[pytest]\n")
    parts = [Part(name, ("-n", "1", f"test_{name}.py")) for name in files]
    outcome = Run(root, PYTEST).run(parts, arguments)
    return outcome, capfd.readouterr().out


def test_a_run_without_failures_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    passing = "def test_passes(): pass"
    outcome, printed = outcome_of(tmp_path, capfd, first=passing, second=passing)
    assert outcome.passed
    assert outcome.lines()[-1] == "tests: passed"
    assert "run again" not in printed


def test_a_run_that_selects_no_test_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A part may have none; all of them may not: a misspelt name would pass."""
    passing = "def test_passes(): pass"
    some, _ = outcome_of(tmp_path, capfd, ("-k", "other"), first=passing, second="def test_other(): pass")
    assert some.passed
    none, _ = outcome_of(tmp_path, capfd, ("-k", "passse"), first=passing, second=passing)
    assert not none.passed
    assert none.broken == ["the arguments select no test: -k passse"]


def test_what_passes_alone_is_unsteady_and_both_outputs_are_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome, printed = outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=1), second="def test_passes(): pass")
    assert outcome.passed
    assert "tests: 1 failed, and are run again, alone" in printed
    [(name, path)] = outcome.unsteady.items()
    assert name == "test_first.py::test_unsteady[0]"
    kept = (tmp_path / path).read_text()
    failed, passed = kept.split("=== alone: passed ===")
    assert "for the first time" in failed
    assert "it was False" in failed
    assert "it was True" in passed
    assert outcome.lines()[-1] == "tests: passed"
    assert f"  {name}\n    see {path}" in outcome.lines()


def test_more_unsteady_tests_than_are_accepted_fail_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    accepted, _ = outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=MOST_UNSTEADY))
    assert accepted.passed
    for seen in tmp_path.glob("seen*"):
        seen.unlink()
    outcome, _ = outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=MOST_UNSTEADY + 1))
    assert len(outcome.unsteady) == MOST_UNSTEADY + 1
    assert not outcome.failed
    assert not outcome.passed
    assert outcome.lines()[-1] == "tests: failed"


def test_what_fails_again_or_ends_its_process_again_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome, _ = outcome_of(tmp_path, capfd, first=FAILING, second=UNSTEADY.format(count=1))
    assert sorted(outcome.failed) == ["test_first.py::test_ends_its_process", "test_first.py::test_fails"]
    assert list(outcome.unsteady) == ["test_second.py::test_unsteady[0]"]
    assert not outcome.passed


def test_many_failures_are_not_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome, printed = outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=MOST_AGAIN + 1))
    assert len(outcome.failed) == MOST_AGAIN + 1
    assert f"more than {MOST_AGAIN} are not run again" in printed
    assert not outcome.passed


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("import nothing_of_that_name", "could not be collected"),
        ("import pytest\ndef test_it(): pytest.exit('over', returncode=3)", "did not run to its end: pytest returned"),
    ],
    ids=["it cannot be imported", "it breaks off"],
)
def test_a_part_that_breaks_off_fails_the_run_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], broken: str, why: str
) -> None:
    outcome, printed = outcome_of(tmp_path, capfd, first=broken, second="def test_passes(): pass")
    assert any(why in line for line in outcome.broken)
    assert "1 passed" in printed
    assert not outcome.passed


def test_arguments_that_select_nothing_of_a_part_are_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome, printed = outcome_of(
        tmp_path, capfd, ("-k", "this"), first="def test_this(): pass", second="def test_that(): pass"
    )
    assert outcome.passed
    assert "1 passed" in printed


def test_what_was_skipped_is_counted_by_reason_and_the_slowest_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    skipping = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_skipped(number):
    pytest.skip("no server: install one")

@pytest.mark.skip(reason="no openssl")
def test_marked():
    pass
"""
    outcome, _ = outcome_of(tmp_path, capfd, first=skipping.format(count=3), second=skipping.format(count=2))
    lines = outcome.lines()
    begin = lines.index("tests: 7 skipped:")
    assert lines[begin + 1 : begin + 3] == ["       5  no server: install one", "       2  no openssl"]
    assert lines[0] == "tests: the slowest, in seconds:"
    assert {line.split()[-1] for line in lines[1:begin]} == set(outcome.seconds)
    assert outcome.passed


def test_what_failed_last_is_known_across_parts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also what passed when it was run again."""
    run = Run(tmp_path, PYTEST)
    assert run.last_failed() == []
    outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=1), second="def test_fails(): assert False")
    assert run.last_failed() == ["test_first.py::test_unsteady[0]", "test_second.py::test_fails"]
    outcome_of(tmp_path, capfd, first=UNSTEADY.format(count=1), second="def test_passes(): pass")
    assert run.last_failed() == []


def test_rounds_beside_busy_processes_are_counted(tmp_path: Path) -> None:
    """A test counts whether it failed again alone or not."""
    outcomes = [
        Outcome(failed=["a"], unsteady={"b": Path("b.txt")}),
        Outcome(),
        Outcome(unsteady={"a": Path("a.txt")}, broken=["the part 'chaos' did not run to its end"]),
    ]
    report = tmp_path / "steady.txt"
    seen: list[bool] = []

    def run() -> Outcome:
        seen.append(report.exists())
        return outcomes.pop()

    assert not steady(run, report, rounds=3, busy=1)
    assert seen == [False, True, True]
    assert report.read_text().splitlines() == [
        "the part 'chaos' did not run to its end",
        "2 of 3  a",
        "1 of 3  b",
    ]
    assert steady(Outcome, report, rounds=2, busy=1)
    assert report.read_text() == ""
