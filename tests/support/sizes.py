"""The two sizes of the suite: a plugin of pytest.

| size | tests |
|---|---|
| `all` | every one; the default of pytest itself, and `make test-all` |
| `quick` | of each function two cases, one if it takes a while, none if it is slow; `make test` |

`slow.txt` has the functions that take a while, with their seconds; `make test-all ARGS=--write-slow` writes it anew.
Two markers decide otherwise: `quick` keeps two cases of a slow function, or one if it takes long, for the promise that
only it shows, and `every_case` keeps all cases of one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

import pytest

SLOW_FILE = Path(__file__).with_name("slow.txt")

CASES = 2
"""How many cases of a function are in the quick size: those that come first by a hash of their names."""

SLOW = 0.3
"""Seconds from which a function is slow: none of its cases is in the quick size.

It is the median of its cases, on two cores that all tests share.
"""

AWHILE = 0.2
"""Seconds from which a function has one case in the quick size. Shorter ones are not in the file."""

LONG = 2.0
"""Seconds from which a function has one case in the quick size even if it is marked `quick`."""


def seconds_of_functions() -> dict[str, float]:
    """Return how long those functions take that take a while, by their names as `path::function`."""
    lines = SLOW_FILE.read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split() for line in lines)}


def cases_of(seconds: float) -> int:
    """Return how many cases of a function are in the quick size that takes so long."""
    return 0 if seconds >= SLOW else 1 if seconds >= AWHILE else CASES


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
    seconds = seconds_of_functions()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[function_of(item.nodeid)].append(item)
    kept: set[pytest.Item] = set()
    for function, found in cases.items():
        marked = [item for item in found if item.get_closest_marker("quick")]
        found = marked or found
        took = seconds.get(function, 0.0)
        most = (1 if took >= LONG else CASES) if marked else cases_of(took)
        if most and found[0].get_closest_marker("every_case"):
            most = len(found)
        found.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        kept.update(found[:most])
    return kept
