"""Statements of a Postgres store that a test changes."""

from __future__ import annotations

from collections.abc import Mapping

from queuert.state.postgres import PostgresState
from queuert.state.postgres.protocol import named


def replace_statements(state: PostgresState, changed: Mapping[str, bytes]) -> None:
    """Let stores that a state opens later run other statements, including those that are prepared by name."""
    statements = state._statements
    vars(statements).update(changed)
    prepared = {name: named(name, text) for name, text in changed.items() if name in statements.prepared}
    statements.prepared = {**statements.prepared, **prepared}
