"""A claim takes the best jobs because it says so, not because the planner happens to read an index in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.ids import new_token
from queuert.notify.in_process import InProcessNotify
from queuert.state.postgres import claiming
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimRequest

SQL = Statements("queuert")
work, other = JobType("work", input=int, output=int), JobType("other", input=int, output=int)


def started(client: Client, type: JobType[int, int], *priorities: int) -> list[str]:
    return [client.start_chain(type, 1, priority=priority).id for priority in priorities]


def claimed(connection: psycopg.Connection[Any], statement: Any, limit: int) -> set[str]:
    """The ids of the jobs that it claims where no index is read in its order."""
    for setting in ("enable_indexscan", "enable_indexonlyscan", "enable_seqscan"):
        connection.execute(f"set local {setting} = off".encode())
    request = ClaimRequest({"other": 60.0, "work": 60.0}, limit, "me", new_token())
    params = claiming.claim(request)
    if statement == SQL.claim_one_type:
        request = replace(request, leases={"work": 60.0})
        params = claiming.claim_one_type(request, expansion=1.0, space=claiming.Space(request.max_bytes))
    rows = connection.execute(statement, params).fetchall()
    return {row[0] for row in rows if row[0] is not None}


@pytest.mark.parametrize("name", ["claim", "claim_many", "claim_rest", "claim_one_type"])
def test_the_best_are_taken(dsn: str, name: str) -> None:
    with Client(PostgresState(dsn), JobTypes(work, other), notify=InProcessNotify()) as client:
        ids = started(client, work, 0, 3, 1, 4, 2)
    with psycopg.connect(dsn) as connection:
        assert claimed(connection, getattr(SQL, name), 2) == {ids[3], ids[1]}


def test_the_next_best_make_up_for_those_that_are_held(dsn: str) -> None:
    with Client(PostgresState(dsn), JobTypes(work, other), notify=InProcessNotify()) as client:
        held = started(client, other, 9, 9)
        ids = started(client, work, 0, 3, 1, 4, 2)
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn) as connection:
        holder.execute("select from queuert.job where id = any(%s) for update", [held])
        assert claimed(connection, SQL.claim_rest, 3) == {ids[3], ids[1], ids[4]}
