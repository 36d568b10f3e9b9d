"""What is sent to databases: fixed texts with bound values. Where texts are put together is known, and argued."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from queuert.state.postgres.statements import texts
from queuert.state.sqlite.connection import statements

ROOT = Path(__file__).parents[2]
APART = ("queuert/testing/", "queuert/demo/")
"""They work on databases of their own, with names of their own."""

SENDERS = {"execute", "executemany", "copy", "stream", "executescript", "fetch", "_fetch"}
SQL = re.compile(
    r"^\s*((SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|CREATE|DROP|ALTER|TRUNCATE|COPY|SET|LOCK|NOTIFY|LISTEN|PRAGMA"
    r"|GRANT|REVOKE|EXPLAIN|ORDER BY|WHERE|AND|FROM|SAVEPOINT)\s)"
)

SENT = {
    # Numbers that were rounded, and one of a few words.
    "queuert/notify/sqlite.py": 1,
    # Channels, of the checked name of the schema and a topic; numbers of parameters, whose texts are bound.
    "queuert/notify/postgres.py": 4,
    "queuert/state/sqlite/connection.py": 2,
    # A snapshot's name, of hexadecimal digits: test_names.py.
    "queuert/state/postgres/copy_export.py": 1,
    # The schema's name, checked by queuert.migrations, and quoted besides.
    "alembic/env.py": 1,
    # Constants of the migrations' own.
    "alembic/versions/0002_chain_model.py": 2,
    "alembic/versions/0003_retention_and_registry.py": 2,
    "alembic/versions/0004_events.py": 1,
    "alembic/versions/0005_spark.py": 1,
    "alembic/versions/0022_progress_events.py": 2,
    "alembic/versions/0026_stale_chains.py": 3,
    # Names and definitions of indexes, which the migrations give as constants; whole milliseconds.
    "queuert/migrations.py": 5,
}
"""How many texts of each file are put together in the call that sends them."""

COMPOSED = {
    "alembic/env.py",
    "alembic/versions/0002_chain_model.py",
    "alembic/versions/0004_events.py",
    "alembic/versions/0005_spark.py",
    # Indexes of the migrations' own, and whole milliseconds.
    "queuert/migrations.py",
    "queuert/notify/sqlite.py",
    # Channels: the schema's name and a topic's.
    "queuert/notify/postgres.py",
    # Whole milliseconds of timeouts, and fixed texts.
    "queuert/state/postgres/bounds.py",
    # The names of schemas, and of days, which come from dates.
    "queuert/state/postgres/event_log.py",
    "queuert/state/postgres/copy_export.py",
    # Columns, conditions and orders out of fixed lists; values are bound.
    "queuert/spark/read/sql.py",
    "queuert/spark/read/csv_arrow.py",
    "queuert/state/sqlite/connection.py",
    "queuert/state/sqlite/listing.py",
    # Commands that mend a finding: shown, and not sent.
    "queuert/state/postgres/doctor.py",
    # The checked name of a schema, in a board that is printed and not sent.
    "queuert/cli/boards.py",
    # A password of hexadecimal digits, for a server without a client.
    "queuert/embedded/postgres.py",
}
"""Files in which some text of SQL is put together at all."""


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Every module of the library and of its migrations, with its name."""
    paths = sorted(path for folder in ("queuert", "alembic") for path in (ROOT / folder).rglob("*.py"))
    named = ((path.relative_to(ROOT).as_posix(), path) for path in paths)
    return tuple((name, ast.parse(path.read_text("utf-8"))) for name, path in named if not name.startswith(APART))


def is_put_together(node: ast.expr) -> bool:
    """Whether an expression makes text of parts: f-strings, %, +, format, join, replace; not psycopg's composition."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(value, ast.FormattedValue) for value in node.values)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("encode", "text"):
            return is_put_together(node.func.value)
        return node.func.attr in ("format", "join", "replace", "format_map") and not is_composition(node.func.value)
    if isinstance(node, ast.Call):
        return any(map(is_put_together, node.args))
    return False


def is_composition(node: ast.expr) -> bool:
    """Whether it is ``sql.SQL("...")`` and the like, which quotes what it is given."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "SQL"


def sent(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls that send a text which was put together there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SENDERS:
            yield from [node] if any(map(is_put_together, node.args[:1])) else []


def test_no_text_is_put_together_where_it_is_sent() -> None:
    found = {name: len(calls) for name, tree in sources() if (calls := list(sent(tree)))}
    assert found == SENT


@pytest.mark.quick
def test_text_of_sql_is_put_together_in_known_places_alone() -> None:
    found = set()
    for name, tree in sources():
        for node in ast.walk(tree):
            text = _constant_beginning(node) if isinstance(node, ast.JoinedStr) else ""
            if text and SQL.match(text) and is_put_together(node):  # type: ignore[arg-type]
                found.add(name)
    assert found <= COMPOSED, "argue it here, or bind the value"
    assert not {name for name in COMPOSED if not (ROOT / name).exists()}


def _constant_beginning(node: ast.JoinedStr) -> str:
    first = node.values[0] if node.values else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_statements_have_no_placeholder_but_names() -> None:
    """Placeholders of fragments and choices are filled by constants when the files are read, and none is left. The
    schema's name is checked; that of a staging table is checked and quoted where it is filled in: test_stored_names.py.
    Values are parameters."""
    for name, text in texts().items():
        names = {"schema", "stage", "columns"} if name.startswith("bulk_") else {"schema"}
        assert set(re.findall(r"\{([a-z_][^{}]*)\}", text)) <= names, name
    for name, text in statements().items():
        assert "{" not in text, name


def test_files_of_sql_execute_no_text() -> None:
    for path in (ROOT / "queuert").rglob("*.sql"):
        if path.name == "roles.sql":
            continue  # Names of roles: test_roles.py.
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?i)\bEXECUTE\b|\bformat\s*\(|quote_ident", text), path.name


@pytest.mark.parametrize(
    "source",
    [
        'c.execute(f"select {x}")',
        'c.execute("select %s" % x)',
        'c.execute("select " + x)',
        'c.execute("select {}".format(x))',
        'c.execute(f"select {x}".encode())',
        'c.execute(text(f"select {x}"))',
        'c.execute("".join(["select ", x]))',
    ],
)
def test_the_check_sees(source: str) -> None:
    assert len(list(sent(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'c.execute("select %s", [x])',
        "c.execute(statement)",
        'c.execute(SQL("select {}").format(Identifier(x)))',
    ],
)
def test_the_check_passes_over(source: str) -> None:
    assert list(sent(ast.parse(source))) == []
