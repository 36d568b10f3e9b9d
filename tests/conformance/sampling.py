"""In which mode a case of the suite runs on each store, where not all cases run in both.

The synchronous stores are generated from the asynchronous ones, so what holds in one mode holds in the other.
Therefore each case runs in one mode on each store: by turns within its group, and in the other mode on the next store.
A case runs in both modes if it alone shows an operation, so that each operation of each store is run in both.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from types import CodeType

from queuert.state import AsyncStore
from queuert.testing.conformance import Case, Mode, all_cases

STORES = {"test_postgres": 0, "test_redis": 1, "test_file": 1, "test_memory": 0}
"""The test functions of the stores, and the mode in which each begins."""


def operations() -> list[str]:
    """Return the names of a store's operations."""
    return [name for name, _ in inspect.getmembers(AsyncStore, inspect.isfunction) if not name.startswith("_")]


@functools.cache
def names(case: Case) -> set[str]:
    """Return all names that a case uses, those of operations among them."""
    found: set[str] = set()
    codes = [inspect.unwrap(case.run).__code__]
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


@functools.cache
def _turns() -> dict[Case, set[int]]:
    """Return 0, 1 or both for each case."""
    counted: Counter[str] = Counter()
    turns: dict[Case, set[int]] = {}
    for case in all_cases():
        turns[case] = {counted[case.group] % 2}
        counted[case.group] += 1
    for operation in operations():
        users = [case for case in turns if operation in names(case)]
        if len(set().union(*(turns[case] for case in users))) == 1:
            for case in users:
                turns[case] = {0, 1}
    return turns


def modes(case: Case, store: str) -> set[Mode]:
    """Return the modes in which a case runs on a store, which the name of its test function stands for."""
    return {list(Mode)[(turn + STORES[store]) % 2] for turn in _turns()[case]}
