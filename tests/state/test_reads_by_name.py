"""Rows are read by the names of their columns: a position lies as soon as somebody adds a column before it.

Counted are reads that can only be positions: a constant of 1 or more, and a constant 0 of a loop's variable. The first
of a list, as in ``found[0]``, is what it says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "queuert"
SOURCES = (*(ROOT / "state").rglob("*.py"), *(ROOT / "notify").rglob("*.py"), ROOT / "migrations.py")
GENERATED = "# Generated from "

MOST = 1
"""The second of the failures that are kept with a job: a place in a list, and no column."""

REMEDY = (
    "Unpack the row with names, as in `for chain_id, status in rows`, or give a row that is passed on a NamedTuple, "
    "whose fields are the columns of its statement, as in queuert/state/sqlite/rows.py"
)


def positions(source: str) -> Iterator[int]:
    """The lines of a module that read by position."""
    tree = ast.parse(source)
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension))
    variables = {loop.target.id for loop in loops if isinstance(loop.target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
            of_a_loop = isinstance(node.value, ast.Name) and node.value.id in variables
            if node.slice.value > 0 or of_a_loop:
                yield node.lineno


def test_stores_read_rows_by_name() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES)}
    found = [
        f"{path.relative_to(ROOT.parent)}:{line}"
        for path, text in texts.items()
        if not text.startswith(GENERATED)
        for line in positions(text)
    ]
    assert len(found) <= MOST, f"{len(found)} reads by position, of {MOST} at most: {', '.join(found)}. {REMEDY}"


@pytest.mark.parametrize(
    "source",
    [
        "status = row[3]",
        "age = rows[0][2]",
        "ids = [row[0] for row in rows]",
        "for row in rows:\n    print(row[0])",
        "async def read():\n    async for row in rows:\n        print(row[0])",
        "value = text.partition(':')[2]",
    ],
)
def test_what_is_a_position(source: str) -> None:
    assert list(positions(source))


@pytest.mark.parametrize(
    "source",
    ["first = found[0]", "last = found[-1]", "status = row[STATUS]", "id = row['id']", "ids = [id for id, *_ in rows]"],
)
def test_what_is_none(source: str) -> None:
    assert not list(positions(source))
