"""The state adapter's contract through PgBouncer in transaction mode, for the cases with transactions and locks.

Every other case is run on asynchronous stores, and the rest on synchronous ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from queuert import PostgresState
from queuert.testing.conformance import Case, Mode, all_cases, run_case
from tests.conformance.test_postgres import Rows
from tests.faults.pgbouncer import PgBouncer, pgbouncer_before

pytestmark = pytest.mark.fault

GROUPS = {"transactions", "renew"}
RACES = {
    "two_blockers_in_overlapping_transactions",
    "close_while_the_dependents_transaction_is_open",
    "finish_against_reap",
    "overlapping_batches",
}
PARTS = {"parts_are_one_start", "a_part_that_cannot_be_made_takes_all_back"}
"""The parts are sent without waiting for answers, in one transaction."""

CASES = [
    pytest.param(case, list(Mode)[number % 2], id=f"{case}-{list(Mode)[number % 2]}")
    for number, case in enumerate(
        case for case in all_cases() if case.group in GROUPS or case.name in RACES or case.name in PARTS
    )
]


def test_all_that_are_named_are_there() -> None:
    assert {case.name for case in all_cases() if case.group == "races"} >= RACES
    assert {case.name for case in all_cases() if case.group == "start"} >= PARTS


class RowsByPooler(Rows):
    """A table of the user's own, whose transactions also go through the pooler."""

    def __init__(self, dsn: str, address: str) -> None:
        super().__init__(dsn)
        self._address = address

    @asynccontextmanager
    async def transaction(self, mode: Mode) -> AsyncIterator[Any]:
        if mode is Mode.ASYNC:
            async with await psycopg.AsyncConnection.connect(self._address, prepare_threshold=None) as connection:
                yield connection
        else:
            with psycopg.connect(self._address, prepare_threshold=None) as connection:
                yield connection


@pytest.fixture(scope="module")
def pooler(postgres_server: str) -> Iterator[PgBouncer]:
    with pgbouncer_before(postgres_server, sessions=100) as pooler:
        yield pooler


@pytest.mark.parametrize(("case", "mode"), CASES)
def test_contract(pooler: PgBouncer, dsn: str, case: Case, mode: Mode) -> None:
    address = pooler.address_in(dsn)
    state = PostgresState(address, prepare_threshold=None, listen_dsn=dsn)
    try:
        asyncio.run(run_case(case, state, mode, RowsByPooler(dsn, address)))
    finally:
        pooler.let_go(dsn)
