"""The two sizes of the suite: a plugin of pytest.

| size | tests |
|---|---|
| `all` | every one; the default of pytest itself, and `make test-all` |
| `quick` | of each function that is not slow, a few cases; `make test` |

`slow.txt` names the slow functions, which `make test-all ARGS=--write-slow` measures anew. Two markers decide
otherwise: `quick` keeps a slow function, for the promise that only it shows, and `every_case` keeps all cases of one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

import pytest

SLOW_FILE = Path(__file__).with_name("slow.txt")

CASES = 2
"""How many cases of a function are in the quick size: those that come first by a hash of their names."""


def slow_functions() -> frozenset[str]:
    """Return the names of the slow test functions, as `path::function`."""
    return frozenset(SLOW_FILE.read_text(encoding="utf-8").split())


def function_of(nodeid: str) -> str:
    """Return the name of a test without its case."""
    return nodeid.partition("[")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--size", choices=("all", "quick"), default="all", help="which tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what the size does not have."""
    if config.getoption("size") == "all":
        return
    kept = quick(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def quick(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests of the quick size."""
    slow = slow_functions()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function = function_of(item.nodeid)
        if item.get_closest_marker("quick") or function not in slow:
            cases[function].append(item)
    kept: set[pytest.Item] = set()
    for found in cases.values():
        if found[0].get_closest_marker("every_case") is None:
            found.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
            kept.update(found[:CASES])
        else:
            kept.update(found)
    return kept
