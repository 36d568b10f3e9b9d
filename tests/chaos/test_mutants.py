"""Every mutant is found, within seconds, by what is named for it; and what finds it passes on the queue as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from queuert import PostgresState
from queuert.errors import StateError
from queuert.ids import new_id
from queuert.state import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance import Mode
from queuert.testing.conformance.registry import Case, all_cases, run_case
from tests.chaos.mutants import MUTANTS, Edit, Mutant, MutantIsGoneError
from tests.chaos.mutants_elsewhere import ELSEWHERE
from tests.chaos.scenarios import SCENARIOS, TIMEOUT, Stage

_SECONDS = 60.0
pytestmark = [pytest.mark.fault, pytest.mark.timeout(2 * _SECONDS)]

_SHORT = 3.0
"""Seconds that a scenario waits for what a broken queue will not do."""
EVERYWHERE = (*MUTANTS, *ELSEWHERE)
_BY_SCENARIO = [mutant for mutant in MUTANTS if mutant.found_by.startswith("scenario")]


@cache
def _cases() -> dict[str, Case]:
    return {str(case): case for case in all_cases()}


async def _play(found_by: str, make: Callable[..., Any], dsn: str, *, timeout: float | None = None) -> None:
    kind, name = found_by.split()
    if timeout is not None:
        TIMEOUT.set(timeout)
    async with asyncio.timeout(_SECONDS):
        if kind == "scenario":
            await SCENARIOS[name](Stage(make, dsn))
        else:
            state: StateAdapter = make(dsn)
            await run_case(_cases()[name], state, Mode.ASYNC)


@pytest.fixture
def address(request: pytest.FixtureRequest, mutant: Mutant) -> str:
    """A store of the mutant's kind."""
    if mutant.store == "sqlite":
        return str(request.getfixturevalue("tmp_path") / "jobs.db")
    address: str = request.getfixturevalue("dsn" if mutant.store == "postgres" else "redis_url")
    return address


def _redis(url: str) -> RedisState:
    return RedisState(url, namespace=new_id())


_STORES: dict[str, Callable[..., Any]] = {"postgres": PostgresState, "redis": _redis, "sqlite": SQLiteState}


@pytest.mark.parametrize("mutant", EVERYWHERE, ids=str)
async def test_is_found(mutant: Mutant, address: str) -> None:
    make = mutant.state if mutant.store == "postgres" else _STORES[mutant.store]
    with mutant.applied(), pytest.raises((AssertionError, ValueError, TimeoutError, StateError)) as found:
        await _play(mutant.found_by, make, address, timeout=_SHORT)
    # A constraint of the tables may be what finds it; a statement that is no SQL any more is no mutant.
    assert not isinstance(found.value, StateError) or "constraint" in str(found.value)


@pytest.mark.parametrize("mutant", EVERYWHERE, ids=str)
async def test_the_queue_as_it_is_passes(mutant: Mutant, address: str) -> None:
    await _play(mutant.found_by, _STORES[mutant.store], address)


def test_numbers_are_those_of_the_catalogue() -> None:
    assert [mutant.number for mutant in MUTANTS] == list(range(1, 19))


def test_a_mutant_follows_what_it_breaks() -> None:
    with pytest.raises(MutantIsGoneError, match="claim"):
        Edit("claim", "what is not there", "").apply("SELECT 1")


def test_every_scenario_finds_a_mutant() -> None:
    assert set(SCENARIOS) == {mutant.found_by.split()[1] for mutant in _BY_SCENARIO}
