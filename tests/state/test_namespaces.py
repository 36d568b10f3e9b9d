"""Namespaces are apart: two schemas of one Postgres database, and the default one beside another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, PostgresState, migrations
from queuert.notify.in_process import InProcessNotify
from tests.state.namespaces import CHECKS, Pair


@pytest.fixture
def two_schemas(dsn: str) -> Pair:
    """The schema that has no name of its own, and a named one beside it."""
    migrations.upgrade(dsn, schema="billing")
    return PostgresState(dsn), PostgresState(dsn, schema="billing")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("reverse", [False, True], ids=["default first", "named first"])
async def test_two_schemas(two_schemas: Pair, check: Callable[[Pair], Awaitable[None]], reverse: bool) -> None:
    first, second = two_schemas
    await check((second, first) if reverse else (first, second))


@pytest.mark.quick
def test_one_transaction_for_both(dsn: str, two_schemas: Pair) -> None:
    """A caller's transaction can start chains in several schemas, all or none."""
    number = JobType("number", input=int, output=int)
    first, second = (Client(state, JobTypes(number), notify=InProcessNotify()) for state in two_schemas)
    with first, second, psycopg.connect(dsn) as connection:
        for client in (first, second):
            client.start_chain(number, 1, id="rolled back", connection=connection)
        connection.rollback()
        for client in (first, second):
            client.start_chain(number, 1, id="kept", connection=connection)
        connection.commit()
        assert [[one.id for one in client.list_chains()] for client in (first, second)] == [["kept"], ["kept"]]


def test_no_connection_is_shared(two_schemas: Pair) -> None:
    """The one that is closed, again and again, does not close the other's."""
    number = JobType("number", input=int, output=int)
    first, second = (Client(state, JobTypes(number), notify=InProcessNotify()) for state in two_schemas)
    with second:
        for _ in range(3):
            with Client(two_schemas[0], JobTypes(number), notify=InProcessNotify()) as closing:
                closing.start_chain(number, 1)
            second.start_chain(number, 1)
        with first:
            assert (len(first.list_chains()), len(second.list_chains())) == (3, 3)
