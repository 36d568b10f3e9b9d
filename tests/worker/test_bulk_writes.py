"""What a bulk write leaves in the event log, by the level of its type. Without Spark: rows are staged by hand."""

from __future__ import annotations

import pytest

from queuert.state.postgres.bulk import BulkSettings, bulk_session, copy_rows, make_stage
from queuert.state.postgres.bulk_commit import BulkResult, BulkStart, Part, commit_write
from tests.support.harness import PostgresHarness

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
