"""What users see: few names at the top, each with a docstring, down to its public methods."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import queuert

ALIASES = ("CallNext", "ClientMiddleware", "Continues", "Outcome")
"""Aliases of types have no docstring."""

PRIVATE = ("queuert._migrations",)


MODULES = [
    found.name
    for found in pkgutil.walk_packages(queuert.__path__, "queuert.")
    if not found.name.startswith(PRIVATE) and not found.name.endswith("__main__")
]


def documented(owner: Any, prefix: str) -> Iterator[str]:
    """The names of public functions, classes and methods, defined here, that have no docstring."""
    for name, value in vars(owner).items():
        if name.startswith("_") or getattr(value, "__module__", owner.__name__) != getattr(
            owner, "__module__", owner.__name__
        ):
            continue
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not (inspect.isfunction(inner) or inspect.isclass(value)):
            continue
        if not inspect.getdoc(value):
            yield f"{prefix}.{name}"
        if inspect.isclass(value):
            yield from documented(value, f"{prefix}.{name}")


def test_the_top_level_is_small_and_complete() -> None:
    assert len(queuert.__all__) <= 50
    assert sorted(queuert.__all__) == list(queuert.__all__)
    for name in queuert.__all__:
        value = getattr(queuert, name)
        assert name in ALIASES or inspect.getdoc(value), name


def test_everything_that_users_pass_or_catch_is_importable_from_the_top_level() -> None:
    wanted = {
        "DatabaseMovedError", "EventKind", "EventLevel", "EventsLostError", "JobEvent", "Keep", "Limits", "MissedRuns",
        "Rate", "RecurringSchedule", "Retention", "RetryLater", "RunAt", "Unrecoverable", "after", "at",
    }  # fmt: skip
    assert wanted <= set(queuert.__all__)
    errors = {name for name in queuert.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(queuert, name), queuert.QueuertError) for name in errors)


def test_all_stores_are_importable_from_the_top_level() -> None:
    """The others without being imported with it."""
    from queuert import PostgresState, RedisState, SQLiteState

    modules = [store.__module__ for store in (PostgresState, RedisState, SQLiteState)]
    assert modules == [f"queuert.state.{name}.adapter" for name in ("postgres", "redis", "sqlite")]
    program = "import sys, queuert; print([name for name in sys.modules if name in ('redis', 'queuert.state.sqlite')])"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"[]\n"
    with pytest.raises(ImportError, match="cannot import name 'MySQLState'"):
        from queuert import MySQLState  # noqa: F401


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "the module says nothing of itself"
    assert list(documented(module, module.__name__)) == []
