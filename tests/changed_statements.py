"""Changes statements of a Postgres store, for tests that must fail with a wrong one."""

from __future__ import annotations

from queuert.state.postgres.protocol import named
from queuert.state.postgres.statements import Statements


def replace_statement(statements: Statements, name: str, text: bytes) -> None:
    """Change a statement, and its prepared form if it has one."""
    setattr(statements, name, text)
    if name in statements.prepared:
        statements.prepared = {**statements.prepared, name: named(name, text)}
