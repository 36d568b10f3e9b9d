"""Writes what a run of tests brought to a file, for `scripts/run_tests.py`: a plugin of pytest."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

_RECORD = pytest.StashKey["Record"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--record", type=Path, metavar="FILE", help="write which tests failed, and more, to this file")
    parser.addoption("--record-passed", action="store_true", help="write the output of tests that passed there, too")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that has the reports of all others."""
    path = config.getoption("record")
    if path is not None and not hasattr(config, "workerinput"):
        config.stash[_RECORD] = Record(path, passed=bool(config.getoption("record_passed")))
        config.pluginmanager.register(config.stash[_RECORD])


class Record:
    """The reports of one run, written when it ends: a run that breaks off leaves no file."""

    def __init__(self, path: Path, *, passed: bool) -> None:
        self._path = path
        self._keep_passed = passed
        self._passed: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._not_collected: list[str] = []
        self._skipped: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Files that cannot be imported are no tests that could be run again."""
        if report.failed:
            self._not_collected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has failed if one of its phases has."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed[report.nodeid] = self._failed.get(report.nodeid, "") + _text(report)
        elif self._keep_passed:
            self._passed[report.nodeid] = self._passed.get(report.nodeid, "") + _text(report)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        record = {
            "failed": self._failed,
            "passed": self._passed,
            "not_collected": self._not_collected,
            "skipped": self._skipped,
            "seconds": self._seconds,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(record), encoding="utf-8")


def _text(report: pytest.TestReport) -> str:
    parts = [report.longreprtext] if report.failed else []
    parts += [f"--- {title} ---\n{content}" for title, content in report.sections]
    return "".join(f"[{report.when}] {part}\n" for part in parts)
