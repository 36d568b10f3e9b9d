"""Each line that the designs ask for has its place: a test, or a row that says what takes its place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.docs.test_comparison import ROOT, TEXT, check_that_they_exist, names_in

COUNTS = {"P": 84, "G": 38, "B": 29, "S": 28}
LINES = [f"{kind}{number:02}" for kind, last in COUNTS.items() for number in range(1, last + 1)]
NOTES = ("redis-requirements.md", "sqlite-requirements.md")
TEXTS = [(ROOT / "docs" / "design" / name).read_text(encoding="utf-8") for name in NOTES]
ROWS = [line for text in (*TEXTS, TEXT) for line in text.splitlines() if re.match(r"\| [PGBS]\d\d", line)]

WITHOUT_A_TEST = ("P83", "S28")
"""A number is no test, and how one develops is none."""


def lines_of(row: str) -> list[str]:
    return row.split("|")[1].strip().split(", ")


def named_for_lines() -> Iterator[tuple[str, list[str]]]:
    """The tests of behaviours whose docstrings begin with lines, and these."""
    for path in sorted((ROOT / "tests" / "behaviours").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                begins = re.match(r"((?:[PGBD]\d\d(?:, )?)+)[:.]", ast.get_docstring(node) or "")
                lines = [line for line in begins[1].split(", ") if line[0] != "D"] if begins else []
                if lines:
                    yield f"{path.relative_to(ROOT)}::{node.name}", lines


OWN = dict(named_for_lines())


def test_each_line_has_one_row() -> None:
    assert Counter(line for row in ROWS for line in lines_of(row)) == Counter(LINES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_row_is_shown_by_tests(row: str) -> None:
    """They exist, and those that are named for lines of the same design say so themselves."""
    assert row.count("|") == 4, "a cell is missing"
    lines, names = lines_of(row), names_in(row)
    assert bool(names) is not (lines[0] in WITHOUT_A_TEST), "the row names no test"
    check_that_they_exist(names)
    for name in names:
        own = {line for line in OWN.get(name, ()) if line[0] == lines[0][0]}
        assert not own or set(lines) & own, f"{name} is for other lines"


@pytest.mark.parametrize("name", OWN)
def test_behaviours_test_is_in_a_row(name: str) -> None:
    """Each says for which lines it is, and the row of one of them names it."""
    lines = OWN[name]
    rows = [row for row in ROWS if set(lines_of(row)) & set(lines)]
    assert any(f"`{name}`" in row for row in rows)
