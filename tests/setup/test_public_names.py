"""What users see: few names at the top, each with a docstring, down to its public methods."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import queuert
from tests.support.public_names import ELSEWHERE, STORES, public_names
from tests.support.waiting import WAIT

ROOT = Path(__file__).resolve().parents[2]

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
    assert set(dir(queuert)) == {*queuert.__all__, *STORES}
    assert len(dir(queuert)) <= 32
    assert sorted(queuert.__all__) == list(queuert.__all__)
    for name, value in public_names().items():
        assert name in ALIASES or inspect.getdoc(value), name


def test_the_guide_says_where_the_other_names_are() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    table = guide.partition("## Where names are")[2].partition("\n## ")[0]
    for module, names in ELSEWHERE.items():
        [row] = [line for line in table.splitlines() if line.startswith(f"| `{module}`")]
        assert module == "queuert.errors" or [name for name in names if f"`{name}`" not in row] == []


def test_errors_at_the_top_are_of_the_library() -> None:
    errors = {name for name in queuert.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(queuert, name), queuert.QueuertError) for name in errors)


def test_all_stores_are_importable_from_the_top_level() -> None:
    """Without being imported with it."""
    from queuert import PostgresState, RedisState, SQLiteState

    modules = [store.__module__ for store in (PostgresState, RedisState, SQLiteState)]
    assert modules == [f"queuert.state.{name}.adapter" for name in ("postgres", "redis", "sqlite")]
    with pytest.raises(ImportError, match="cannot import name 'MySQLState'"):
        from queuert import MySQLState  # noqa: F401


POSTGRES, REDIS = ("psycopg", "psycopg_pool", "sqlalchemy", "alembic"), ("redis",)


@pytest.mark.parametrize(
    ("store", "missing"), [("sqlite", (*POSTGRES, *REDIS)), ("redis", POSTGRES), ("postgres", REDIS)]
)
def test_a_driver_that_is_not_used_is_not_needed(store: str, missing: tuple[str, ...]) -> None:
    """In a slim image there may be no libpq, without which psycopg cannot be imported."""
    program = f"""
import sys
sys.modules |= dict.fromkeys({(*missing, "opentelemetry", "pyspark")!r})
import queuert.state.{store}, queuert.testing, queuert.worker
from queuert.cli import build_parser
build_parser()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_names_can_be_read_without_a_driver() -> None:
    """``help()`` and the completion of editors read each of them."""
    program = """
import sys
sys.modules |= dict.fromkeys(["redis", "psycopg"])
import inspect, queuert
names = dict(inspect.getmembers(queuert))
print("RedisState" in names, "PostgresState" in names, "SQLiteState" in names)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False False True\n", "")


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "the module says nothing of itself"
    assert list(documented(module, module.__name__)) == []


def test_queuert_is_imported_without_sqlite() -> None:
    """Some builds of Python have no sqlite3: the other stores need none."""
    program = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('sqlite3', '_sqlite3'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "import queuert\n"
        "queuert.PostgresState, queuert.RedisState\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT)
