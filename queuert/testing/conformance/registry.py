"""The list of all cases."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queuert.state import Capability, StateAdapter
from queuert.testing.conformance.stores import Mode, Stores, UserData

CaseFunction = Callable[[Stores], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of the contract, and the function that tests it."""

    group: str
    name: str
    shows: str
    """The function's docstring."""
    run: CaseFunction
    needs: tuple[Capability, ...] = ()
    """The capabilities that the adapter needs for the case."""

    def __str__(self) -> str:
        return f"{self.group}-{self.name}"


_cases: list[Case] = []


def case(*needs: Capability) -> Callable[[CaseFunction], CaseFunction]:
    """Register the decorated function as a case of the group that its module is named for."""

    def register(function: CaseFunction) -> CaseFunction:
        group = function.__module__.rpartition(".")[2]
        name = getattr(function, "__name__", "")
        _cases.append(Case(group, name, function.__doc__ or "", function, needs))
        return function

    return register


def all_cases() -> tuple[Case, ...]:
    """Return every case, by group and in source order."""
    from queuert.testing.conformance import cases

    for module in sorted(entry.name for entry in pkgutil.iter_modules(cases.__path__)):
        importlib.import_module(f"{cases.__name__}.{module}")
    return tuple(_cases)


async def run_case(case: Case, adapter: StateAdapter, mode: Mode, user_data: UserData | None = None) -> None:
    """Run one case on a fresh, empty adapter, and close what it opened.

    Raises:
        Exception: what the case raised, an AssertionError as a rule.
    """
    stores = Stores(adapter, mode, user_data)
    try:
        await case.run(stores)
    finally:
        await stores.aclose()
