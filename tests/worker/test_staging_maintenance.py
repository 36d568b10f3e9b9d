"""Workers remove what dead drivers of bulk writes have left, and forget writes that nobody can ask for."""

from __future__ import annotations

import pytest

from queuert.observability.events import StagingCleaned
from queuert.state.postgres.bulk import BulkSettings, bulk_session, copy_rows, make_stage, sweep_staging
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import NewJob, StagingCleanup
from queuert.worker import maintenance
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.waiting import in_time

LONG_AGO = "update queuert.bulk_stage set touched_at = touched_at - interval '25 hours' where name = %s"
NOTE = (
    "insert into queuert.bulk_write (committed_at, write_id, type, rows, started, rejected, reject_files)"
    " values (now() - %s::interval, %s, 'number', 1, 1, 0, '{}')"
)
ROW = b"%s\t0\tan-id\t1\n" % b"00000000-0000-0000-0000-000000000001"


def tables(harness: PostgresHarness) -> set[str]:
    return {
        name
        for (name,) in harness.rows("select relname from pg_class where relname like 'bulk_stage_%%' and relkind = 'r'")
    }


async def test_a_worker_drops_what_a_dead_driver_has_staged(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_MAX_FIRST_PAUSE", 0.0)
    with bulk_session(BulkSettings(harness.dsn, "queuert")) as session:
        dead, fresh = make_stage(session, "dead"), make_stage(session, "fresh")
        copy_rows(session, dead, ("tag", "place", "id", "input"), [ROW])
    harness.rows(LONG_AGO, dead)
    harness.rows(
        "insert into queuert.stream_stage (tag, place, id, input, staged_at)"
        " select gen_random_uuid(), 1, n::text, '1', now() - n * interval '20 hours' from generate_series(0, 2) as n"
    )
    harness.handles(number, echo)
    async with harness.worker() as worker:
        reported = await in_time(harness.log.wait_for(StagingCleaned))
    assert (reported.worker, reported.dropped, reported.forgotten) == (worker.name, (dead,), 0)
    assert tables(harness) == {fresh}
    assert harness.rows("select id from queuert.stream_stage order by id") == [("0",), ("1",)]


async def test_one_that_is_being_loaded_stays(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.state.postgres.async_retention.DROP_TIMEOUT", 0.01)
    store = harness.state.async_store()
    await store.open()
    try:
        with bulk_session(BulkSettings(harness.dsn, "queuert")) as session:
            name = make_stage(session, "slow")
            harness.rows(LONG_AGO, name)
            with session.transaction() as connection:
                connection.execute(f"lock table queuert.{name} in row exclusive mode".encode())
                assert await store.clean_staging() == StagingCleanup()
            assert tables(harness) == {name}
            assert await store.clean_staging() == StagingCleanup((name,))
            assert sweep_staging(session, older_than=0.0) == []
    finally:
        await store.aclose()


async def test_a_write_that_is_being_repeated_is_not_forgotten(harness: PostgresHarness) -> None:
    store = harness.state.async_store()
    await store.open()
    noted = {"write_id": "again", "type": "number", "rows": 1, "rejected": 0, "reject_files": list[str]()}
    try:
        harness.rows(NOTE, "31 days", "again")
        with bulk_session(BulkSettings(harness.dsn, "queuert")) as session, session.transaction() as connection:
            assert fetch(connection, session.sql.bulk_record_write, noted) == []
            assert await store.clean_staging() == StagingCleanup()
            assert fetch(connection, session.sql.bulk_find_write, noted) == [("number", 1, 1, 0, [])]
        assert await store.clean_staging() == StagingCleanup((), 1)
    finally:
        await store.aclose()


@pytest.mark.quick
async def test_a_write_is_forgotten_when_it_is_old_and_its_chains_are_gone(harness: PostgresHarness) -> None:
    store = harness.state.async_store()
    await store.open()
    try:
        await store.start_jobs([NewJob("kept", "number", "1", id_chosen=True)])
        harness.rows("update queuert.job set write_id = 'with a chain'")
        for age, write in (("31 days", "gone"), ("31 days", "with a chain"), ("29 days", "lately")):
            harness.rows(NOTE, age, write)
        assert await store.clean_staging() == StagingCleanup((), 1)
        assert await store.clean_staging() == StagingCleanup()
        assert harness.rows("select write_id from queuert.bulk_write order by 1") == [("lately",), ("with a chain",)]
        harness.rows("delete from queuert.job")
        assert await store.clean_staging() == StagingCleanup((), 1)
    finally:
        await store.aclose()
