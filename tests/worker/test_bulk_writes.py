"""What a bulk write leaves in the event log, and what it is fenced by. Without Spark: rows are staged by hand."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Literal

import pytest

from queuert.state.postgres.bulk import BulkSettings, bulk_session, copy_rows, make_stage
from queuert.state.postgres.bulk_commit import BulkResult, BulkStart, FenceLost, Part, commit_write
from tests.support.harness import PostgresHarness
from tests.support.job_types import number

_TAG = "00000000-0000-0000-0000-000000000001"
_ROWS = [f'{_TAG}\t{place}\tid-{place}\t{{"n": {place}}}\n'.encode() for place in range(3)]


@pytest.mark.parametrize(
    ("level", "type_level", "noted"),
    [("all", None, 3), ("off", None, 0), ("terminal", None, 0), ("off", "all", 3), ("all", "terminal", 0)],
)
async def test_events_are_noted_where_the_level_says_so(
    harness: PostgresHarness, level: str, type_level: str | None, noted: int
) -> None:
    harness.rows("update queuert.event_log set level = %s", level)
    if type_level is not None:
        harness.rows("insert into queuert.event_level (type, level) values ('number', %s)", type_level)
    with bulk_session(BulkSettings(harness.dsn, "queuert")) as session:
        table = make_stage(session, "write")
        copy_rows(session, table, ("tag", "place", "id", "input"), _ROWS)
        # One of them is there already: it is neither started again nor noted.
        harness.rows(
            "insert into queuert.job (id, type, chain_id, chain_type, chain_status, input)"
            " values ('id-9', 'number', 'id-9', 'number', 'open', '9')"
        )
        copy_rows(session, table, ("tag", "place", "id", "input"), [_ROWS[0].replace(b"\t0\tid-0", b"\t3\tid-9")])
        start = BulkStart(type="number", write_id="write", parts=[Part(_TAG, 4)], has_ids=True, skip_existing=True)
        assert commit_write(session, table, start) == BulkResult(4, 3)
    assert harness.rows("select id, input from queuert.job where write_id = 'write' order by created_at") == [
        (f"id-{place}", {"n": place}) for place in range(3)
    ]
    assert harness.one("select count(*) from queuert.event where kind = 'created'") == noted
    assert harness.rows("select rows, started from queuert.bulk_write") == [(4, 3)]


@pytest.mark.every_case
@pytest.mark.parametrize("wrong", ["job", "attempt", "token", "lease"])
async def test_a_write_is_fenced_by_the_job_its_attempt_and_its_token(
    harness: PostgresHarness, wrong: Literal["job", "attempt", "token", "lease"]
) -> None:
    chain = await harness.client.start_chain(number, 1)
    job = await harness.claim_and_die(number, seconds=3600.0)
    right = (chain.id, job.attempt, job.token)
    fence = {
        "job": ("another", job.attempt, job.token),
        "attempt": (chain.id, job.attempt + 1, job.token),
        "token": (chain.id, job.attempt, str(uuid.uuid4())),
        "lease": right,
    }[wrong]
    with bulk_session(BulkSettings(harness.dsn, "queuert")) as session:
        table = make_stage(session, "write")
        copy_rows(session, table, ("tag", "place", "id", "input"), _ROWS)
        start = BulkStart(type="text", write_id="write", parts=[Part(_TAG, 3)], has_ids=True, fence=fence)
        lease = "update queuert.job set lease_expires_at = now() + %s * interval '1 hour' where id = %s returning id"
        harness.rows(lease, -1 if wrong == "lease" else 1, chain.id)
        with pytest.raises(FenceLost):
            commit_write(session, table, start)
        assert harness.one("select count(*) from queuert.job where type = 'text'") == 0
        harness.rows(lease, 1, chain.id)
        assert commit_write(session, table, replace(start, fence=right)) == BulkResult(3, 3)
