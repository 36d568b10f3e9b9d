"""Reads the SQL of ``sql/``, one file for each group of operations, and of ``migrations/``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from queuert.state.named_sections import read_sections


@cache
def statements() -> dict[str, str]:
    """Return the statements by name: the section ``-- name: claim`` is ``claim``."""
    return read_sections("queuert.state.sqlite", "sql", ".sql")


@cache
def migration(name: str) -> str:
    """Return the statements that create the schema, or that upgrade it by one version."""
    return files("queuert.state.sqlite").joinpath("migrations", f"{name}.sql").read_text(encoding="utf-8")
