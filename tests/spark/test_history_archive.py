"""The archive of closed chains, with a real Spark and a real Postgres."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert.spark.history import run_archive
from queuert.state import sync_unread
from queuert.state.postgres import PostgresState
from tests.spark.history_support import (
    EVENTS_OF_JOBS,
    OUTPUT,
    add_chains,
    archive_all,
    archived,
    at_step,
    left,
    run,
    staged,
    steps,
    waits,
)
from tests.spark.read_support import connected
from tests.spark.support import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def test_chains_move_to_the_archive(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """Exactly once, by the day (UTC) of the closing; what is too young, or open, stays."""
    add_chains(dsn, 60)
    run(dsn, EVENTS_OF_JOBS)
    old = "finished_at < now() - interval '24 hours'"
    before = query(dsn, f"SELECT id FROM queuert.job WHERE {old} ORDER BY id")
    day = "to_char(chain_closed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day"
    by_day = dict(query(dsn, f"SELECT {day}, count(*) FROM queuert.job WHERE {old} AND chain_index = 0 GROUP BY 1"))
    result = archive_all(spark, dsn, tmp_path, older_than=86_400, batch=7)
    assert archived(tmp_path, "jobs") == before
    assert (result.jobs, result.kept, result.dates) == (len(before), {}, by_day)
    assert archived(tmp_path) == sorted(set(archived(tmp_path, "jobs", "chain_id")))
    assert archived(tmp_path, "events", "job_id") == before
    assert result.chains == len(archived(tmp_path)) == sum(by_day.values())
    assert sorted(set(left(dsn)) & set(before)) == []
    assert len(left(dsn)) + len(before) == 80
    found = spark.read.parquet(str(tmp_path / "archive/jobs")).where("id = 'c30'").collect()
    assert [(row.input, row.output, row.run) for row in found] == [('{"n": 30}', OUTPUT, result.run)]
    again = archive_all(spark, dsn, tmp_path, older_than=86_400)
    assert (again.chains, again.jobs, again.kept) == (0, 0, {})
    assert archived(tmp_path, "jobs") == before


class Killed(Exception):
    pass


def fail() -> None:
    raise Killed


NOTED = ("planned", "written", "deleted", "staged", "replaced", "done")
STEPS = (
    "planned", "chains", "jobs", "events", "written", "deleting", "deleted", "staged", "replacing", "replaced", "done",
)  # fmt: skip


def test_run_that_dies(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """At each step, one after the other: the next one goes on, nothing is lost, and nothing comes twice."""
    add_chains(dsn, 12)
    run(dsn, EVENTS_OF_JOBS)
    waits(dsn, "c3")
    jobs = left(dsn)
    for step in STEPS:
        with pytest.raises(Killed):
            archive_all(spark, dsn, tmp_path, batch=5, on_progress=at_step(f"archive.{step}", fail))
        assert {*archived(tmp_path, "jobs"), *staged(tmp_path), *left(dsn)} == set(jobs)
    stays = ["c3", "c3-next", "waits"]
    done = [id for id in jobs if id not in stays]
    assert archived(tmp_path, "jobs") == archived(tmp_path, "events", "job_id") == done
    assert archived(tmp_path) == [id for id in done if "next" not in id]
    assert left(dsn) == stays
    assert steps(tmp_path) == [f"{at:02}-{name}.json" for at, name in enumerate(NOTED, 1)]
    assert staged(tmp_path) == []
    (again,) = run_archive(spark, dsn, str(tmp_path), older_than=0, partitions=1)
    assert (again.resumed, again.chains, again.kept, left(dsn)) == (False, 0, {"waited_for": 1}, stays)
    assert archived(tmp_path, "jobs") == done


def test_late_commit(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """A chain that closed long ago, by a transaction that commits after a run, is archived by the next."""
    add_chains(dsn, 3)
    with connected(dsn) as connection, connection.transaction():
        connection.execute(
            b"INSERT INTO queuert.job (id, type, chain_id, chain_type, status, chain_status, input, attempt,"
            b" created_at, finished_at, chain_closed_at, completed_tx) SELECT 'late', 'resize', 'late', 'resize',"
            b" 'completed', 'completed', '1', 1, at, at, at, pg_current_xact_id()"
            b" FROM (SELECT now() - interval '9 days' AS at) AS _"
        )
        add_chains(dsn, 2, "younger")
        archive_all(spark, dsn, tmp_path)
    assert archived(tmp_path) == ["c1", "c2", "c3"]
    archive_all(spark, dsn, tmp_path)
    assert archived(tmp_path) == ["c1", "c2", "c3", "late", "younger1", "younger2"]
    assert left(dsn) == []


RETRY = """
    UPDATE queuert.job SET status = 'ready', chain_status = 'open', finished_at = NULL, chain_closed_at = NULL,
        completed_tx = NULL, output = NULL WHERE id = 'c2'
"""


def test_retried_meanwhile(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """A chain that is opened again before it is deleted stays, and is not in the archive; it may be later."""
    add_chains(dsn, 3)
    result = archive_all(spark, dsn, tmp_path, on_progress=at_step("archive.written", lambda: run(dsn, RETRY)))
    assert (archived(tmp_path), left(dsn)) == (["c1", "c3"], ["c2"])
    assert (result.chains, result.kept, result.kept_ids) == (2, {"changed": 1}, ["c2"])
    run(dsn, "UPDATE queuert.job SET status = 'completed', chain_status = 'completed', finished_at = clock_timestamp(),"
             " chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(), output = '1'")  # fmt: skip
    archive_all(spark, dsn, tmp_path)
    assert (archived(tmp_path), left(dsn)) == (["c1", "c2", "c3"], [])


@pytest.mark.quick
def test_changed_while_read(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """A chain of which not all jobs were read is not in the archive."""
    add_chains(dsn, 4)
    delete = "DELETE FROM queuert.job WHERE chain_id = 'c3'"
    result = archive_all(spark, dsn, tmp_path, on_progress=at_step("archive.chains", lambda: run(dsn, delete)))
    assert (archived(tmp_path), archived(tmp_path, "jobs")) == (["c1", "c2", "c4"], ["c1", "c2", "c4"])
    assert result.kept == {"torn": 1}


def test_a_run_that_was_planned_before_a_failover_lost_transactions(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """Its last transaction is beyond those of the server that was promoted."""
    add_chains(dsn, 2)

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        archive_all(spark, dsn, tmp_path, on_progress=at_step("archive.planned", die))
    [planned] = tmp_path.glob("**/01-planned.json")
    planned.write_text(json.dumps({**json.loads(planned.read_text()), "to_tx": 2**40}))
    planned.with_name(f".{planned.name}.crc").unlink()
    archive_all(spark, dsn, tmp_path)
    assert (archived(tmp_path), left(dsn)) == (["c1", "c2"], [])
    assert steps(tmp_path).count("06-done.json") == 2


def test_same_id_again(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """A chain that was started anew under the id of one that is deleted does not take it out of the archive."""
    add_chains(dsn, 2)
    columns = "id, type, chain_id, chain_type, status, chain_status, input"
    anew = f"INSERT INTO queuert.job ({columns}) VALUES ('c1', 'resize', 'c1', 'resize', 'ready', 'open', '1')"

    def die() -> None:
        run(dsn, anew)
        raise Killed

    with pytest.raises(Killed):
        archive_all(spark, dsn, tmp_path, on_progress=at_step("archive.deleting", die))
    archive_all(spark, dsn, tmp_path)
    assert (archived(tmp_path), left(dsn)) == (["c1", "c2"], ["c1"])
    assert steps(tmp_path).count("06-done.json") == 2


def test_events_of_an_earlier_chain_of_the_same_id(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """They are not the chain's. One that is a little earlier than its chain is: clocks and large starts."""
    add_chains(dsn, 29)
    run(dsn, EVENTS_OF_JOBS)
    for earlier in ("1 hour", "30 seconds"):
        run(dsn, EVENTS_OF_JOBS.replace("SELECT finished_at", f"SELECT created_at - interval '{earlier}'")
                 + " AND id IN ('c1', 'c29')")  # fmt: skip
    archive_all(spark, dsn, tmp_path)
    found = archived(tmp_path, "events", "chain_id")
    assert (found.count("c1"), found.count("c29"), found.count("c2")) == (2, 2, 1)


def read_all(dsn: str) -> None:
    """Let the dispatcher have read the whole log."""
    store = PostgresState(dsn).sync_store()
    store.open()
    body = json.dumps({"cursor": store.event_log_end().cursor, "holder": None})
    store.close()
    run(dsn, "INSERT INTO queuert.webhook_record (kind, id, tag, body) VALUES ('dispatcher', 'cursor', 't', %(body)s)"
             " ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body", body=body)  # fmt: skip


def test_what_webhooks_have_still_to_read_stays(
    spark: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What closed after the first unread event is not selected; what became stale after it is not deleted."""
    monkeypatch.setattr(sync_unread, "_OUT_OF_ORDER", timedelta(0))
    monkeypatch.setattr(sync_unread, "_CLOCKS", timedelta(0))
    add_chains(dsn, 4)
    run(dsn, "UPDATE queuert.job SET stale_at = now() WHERE id = 'c4'")
    read_all(dsn)
    run(dsn, EVENTS_OF_JOBS + " AND id = 'c1'")
    result = archive_all(spark, dsn, tmp_path)
    assert (archived(tmp_path), left(dsn)) == (["c2", "c3"], ["c1", "c4"])
    assert (result.kept, result.kept_ids) == ({"unread": 1}, ["c4"])
    read_all(dsn)
    archive_all(spark, dsn, tmp_path)
    assert (archived(tmp_path), left(dsn)) == (["c1", "c2", "c3", "c4"], [])
