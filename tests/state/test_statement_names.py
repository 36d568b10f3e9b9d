"""Names in code and in SQL fit together: no statement without a user, and no use without a statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert.state.named_sections import read_file, read_sections
from queuert.state.postgres.statements import Statements, texts

ROOT = Path(__file__).parents[2] / "queuert"
OWNERS = {"sql", "_sql", "_statements", "statements"}
"""What variables and attributes are called that hold statements."""


def used() -> Iterator[tuple[str, str]]:
    """The names of statements that code uses, as ``sql.claim`` or ``sql.prepared["claim"]``, each with its module."""
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text("utf-8")
        if "state.postgres" not in source:
            continue
        # There the plain name is psycopg's module.
        owners = OWNERS - {"sql"} if "from psycopg import" in source and "sql.Identifier" in source else OWNERS
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and _holds_statements(node.value, owners):
                yield path.relative_to(ROOT).as_posix(), node.attr
            elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", None) == "prepared":
                for part in ast.walk(node.slice):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield path.relative_to(ROOT).as_posix(), part.value


def _holds_statements(node: ast.expr, owners: set[str]) -> bool:
    return (isinstance(node, ast.Name) and node.id in owners) or (
        isinstance(node, ast.Attribute) and node.attr in OWNERS
    )


def test_statements_that_code_uses_exist() -> None:
    statements = Statements("queuert")
    missing = {f"{module}: {name}" for module, name in used() if name != "prepared" and not hasattr(statements, name)}
    assert missing == set()


def test_every_statement_is_used() -> None:
    assert sorted(set(texts()) - {name for _, name in used()}) == []


def test_every_fragment_is_used() -> None:
    fragments = read_file("queuert.state.postgres", "fragments.sql")
    sources = "\n".join([*read_sections("queuert.state.postgres", "sql", ".sql").values(), *fragments.values()])
    by_choice = {"attribute_entries", "progress_entries", "one_type", "lock_missing"}
    assert [name for name in fragments if f"{{{name}" not in sources and name not in by_choice] == []


def test_a_name_without_a_section_is_refused() -> None:
    with pytest.raises(AttributeError, match="-- name: clam"):
        _ = Statements("queuert").clam
