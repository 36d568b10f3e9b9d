"""Prints which cases of the conformance suite each store passed, and which were skipped for a missing capability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

_STORES = {
    "test_postgres.py": "Postgres",
    "test_redis.py": "Redis",
    "test_sqlite.py::test_file": "SQLite file",
    "test_sqlite.py::test_memory": "SQLite memory",
}
_NEEDS = "needs "


def _store_of(nodeid: str) -> str | None:
    return next((name for part, name in _STORES.items() if f"tests/conformance/{part}" in nodeid), None)


def _wanted(report: pytest.TestReport) -> str:
    """Return the capability that a skipped case needs."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ").removeprefix(_NEEDS)


def _rows(reports: Mapping[str, list[pytest.TestReport]]) -> Iterator[tuple[str, Counter[str]]]:
    found: dict[str, Counter[str]] = {name: Counter() for name in _STORES.values()}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reports.get(outcome, []):
            store = _store_of(getattr(report, "nodeid", ""))
            if store is not None and (outcome != "passed" or report.when == "call"):
                found[store][_wanted(report) if outcome == "skipped" else outcome] += 1
    yield from ((name, numbers) for name, numbers in found.items() if numbers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = list(_rows(terminalreporter.stats))
    if not rows:
        return
    terminalreporter.section("conformance, sync and async: cases by store")
    for name, numbers in rows:
        failed = numbers.pop("failed", 0) + numbers.pop("error", 0)
        passed = numbers.pop("passed", 0)
        skipped = ", ".join(f"{count} for want of {wanted}" for wanted, count in sorted(numbers.items()))
        terminalreporter.line(f"{name:<14} {passed:>5} passed {failed:>4} failed   skipped: {skipped or 'none'}")
