"""Every test that the comparison names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from queuert.testing.conformance import all_cases

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("|")
    and not line.startswith(("| feature", "| fault", "| line", "|---"))
    # Of those of the designs, test_requirements.py takes care.
    and not re.match(r"\| [PGBS]\d\d", line)
]


@cache
def cases() -> set[str]:
    return {f"{case.group}/{case.name}" for case in all_cases()}


def names_in(row: str) -> list[str]:
    return re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])


def check_that_they_exist(names: list[str]) -> None:
    for name in names:
        path, _, test = name.partition("::")
        if not path.endswith(".py"):
            assert name in cases(), f"no case of the conformance suite: {name}"
            continue
        source = (ROOT / path).read_text(encoding="utf-8")
        wanted = rf"def {re.escape(test)}\b" if test else r"def test_|conformance_tests\("
        assert re.search(wanted, source), f"no such test: {name}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_row_is_shown_by_tests(row: str) -> None:
    names = names_in(row)
    assert names, "the row names no test"
    assert row.count("|") in (3, 10), "a cell is missing"
    check_that_they_exist(names)


def test_no_row_is_lost() -> None:
    assert len(ROWS) > 80
