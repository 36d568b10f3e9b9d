"""What users see: few names at the top, each with a docstring, down to its public methods."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import queuert

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
    assert len(queuert.__all__) <= 25
    assert sorted(queuert.__all__) == list(queuert.__all__)
    for name in queuert.__all__:
        value = getattr(queuert, name)
        assert name == "Outcome" or inspect.getdoc(value), name


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "the module says nothing of itself"
    assert list(documented(module, module.__name__)) == []
