"""What is planned while the table is empty is kept until the next analyze: it must do for all that comes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert.ids import new_token
from queuert.state import Store
from queuert.state.postgres import PostgresState
from queuert.state.types import ClaimRequest, Finish, FinishKind, NewJob

TABLES = ("job", "job_blocker", "deduplication", "chain_attribute")


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # As a night's vacuum leaves it: without this a planner reckons with ten pages of what it has never seen.
        for table in TABLES:
            connection.execute(f"VACUUM (ANALYZE) queuert.{table}".encode())
    store = opened(dsn)
    yield store
    store.close()


def opened(dsn: str) -> Store:
    """A store of one session, which must be closed."""
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    return store


def claimed(store: Store, wanted: int = 10) -> list[Any]:
    return store.claim(ClaimRequest({"work": 60.0}, wanted, "me", new_token()))


def plans(store: Any) -> dict[str, str]:
    """The plan that the store's session keeps of each statement that it has prepared, by the statement's name."""
    found = {}
    for name, parameters in store._fetch(
        b"SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE name LIKE 'queuert%'"
    ):
        values = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
        lines = store._fetch(f"EXPLAIN EXECUTE {name}{values}".encode())
        found[name] = "\n".join(line for (line,) in lines)
    return found


def test_plans_that_were_made_of_an_empty_table_go_by_indexes(store: Store) -> None:
    assert claimed(store) == []
    assert store.next_due(["work"]) is None
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)
    store.finish([Finish(job, FinishKind.COMPLETE, output="1")])
    store.start_jobs([NewJob(f"{number}", "work", "1") for number in range(3)])
    first, *others = claimed(store)
    store.finish(
        [Finish(first, FinishKind.FAIL, error=None), *(Finish(one, FinishKind.COMPLETE, output="1") for one in others)]
    )
    store.get_jobs(["a"])
    kept = plans(store)
    assert {name.split("_")[1] for name in kept} >= {"claim", "complete", "start", "finish"}
    for name, plan in kept.items():
        for table in TABLES:
            assert f"Seq Scan on {table} " not in plan, f"{name}\n{plan}"


@pytest.mark.parametrize("jit", ["on", "off"])
def test_what_a_handler_asks_is_planned_as_ever(dsn: str, jit: str) -> None:
    """Before version 18 a plan with a table that can only be scanned would be compiled as well, at each execution."""
    dsn = make_conninfo(dsn, options=f"-c jit={jit}")
    store = opened(dsn)
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)
    params = b"SELECT current_setting('enable_seqscan'), current_setting('plan_cache_mode'), current_setting('jit')"
    with psycopg.connect(dsn) as plain:
        usual = plain.execute(params).fetchall()
    with store.transaction(job) as held:
        assert held.connection.execute(params).fetchall() == usual == [("on", "auto", jit)]
        held.finish(Finish(job, FinishKind.COMPLETE, output="1"))
    assert store._fetch(params) == [("off", "force_generic_plan", "off")]  # type: ignore[attr-defined]
    store.close()
