"""A database that was moved to another cluster says so, and ``queuert migrate adopt`` makes its numbers those of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from queuert import Client, JobType, JobTypes, migrations
from queuert.cli import main
from queuert.errors import DatabaseMovedError, EventsLostError, MigrationError
from queuert.event_log import EventFilter, JobEvent
from queuert.ids import new_token
from queuert.observability.events import StoreWarningRaised
from queuert.state.paging import PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.postgres.adoption import adopt, how_moved, plan_adoption
from queuert.state.types import NewJob
from queuert.state.webhooks import ENDPOINT, WebhookWrite
from queuert.testing.events import EventLog
from tests.conftest import StartPostgres
from tests.events.moved import AHEAD, Moved, advance, moved, work
from tests.support.addresses import password_of
from tests.support.store_harness import StoreHarness

JOBS = 50
JOB_TYPES = JobTypes(JobType("work", input=int, output=int))


def settled(store_of: Moved | StoreHarness, cursor: str | None = None) -> list[JobEvent]:
    """All that a reader hears who follows the log."""
    request = PageRequest(limit=1000, oldest_first=True, cursor=cursor)
    return list(store_of.store.list_events(EventFilter(), request))


@pytest.fixture
def there(harness: StoreHarness, private_postgres: StartPostgres) -> Iterator[Moved]:
    """A database with closed chains, moved from a cluster that has had many transactions."""
    work(harness, *(f"old-{number}" for number in range(JOBS)))
    harness.start("open", type="other")
    advance(harness.sql)
    old_cursor = harness.store.list_events(EventFilter(), PageRequest(limit=1)).items[0].cursor
    there = moved(harness, private_postgres(durable=False).dsn())
    there.old_cursor = old_cursor
    yield there
    there.close()


def in_new(there: Moved) -> StoreHarness:
    return StoreHarness(there.dsn, there.store, there.sql)


def test_a_moved_database_is_reported_of_and_its_log_is_not_read(
    there: Moved, capsys: pytest.CaptureFixture[str]
) -> None:
    in_new(there).start("goes-on")  # jobs do
    for oldest_first in (True, False):
        with pytest.raises(DatabaseMovedError, match="queuert migrate adopt"):
            there.store.list_events(EventFilter(), PageRequest(oldest_first=oldest_first))
    log = EventLog()
    with Client(PostgresState(there.dsn), JOB_TYPES, observability=log) as client:
        client.count_jobs()
    [risk] = [event for event in log.events if isinstance(event, StoreWarningRaised)]
    assert "queuert migrate adopt" in risk.advice
    assert main(["migrate", "status", "--url", there.dsn]) == 1
    assert "queuert migrate adopt" in capsys.readouterr().out


def test_readers_hear_of_all_and_in_order_after_an_adoption(there: Moved) -> None:
    new = in_new(there)
    work(new, "unnoticed")  # between the move and the adoption
    assert plan_adoption(there.dsn).needed
    done = adopt(there.dsn)
    assert (done.events, done.jobs) == (3 * JOBS + 1 + 3, JOBS)
    work(new, *(f"new-{number}" for number in range(5)))

    found = settled(there)
    expected = [f"old-{number}" for number in range(JOBS)]
    expected += ["unnoticed", *(f"new-{number}" for number in range(5))]
    assert [event.job_id for event in found if event.kind == "completed"] == expected
    assert len(found) == there.sql.execute("select count(*) from queuert.event").fetchone()[0]  # type: ignore[index]
    for name in expected:
        assert [event.kind for event in found if event.job_id == name] == ["created", "started", "completed"]
    pages, cursor = [], None
    while True:
        page = there.store.list_events(EventFilter(), PageRequest(limit=7, oldest_first=True, cursor=cursor))
        pages += list(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == found


def test_webhooks_go_on_after_an_adoption(there: Moved) -> None:
    """They were made in the old cluster, whose numbers this one reaches much later."""
    body = json.dumps({"url": "https://example.com", "from_tx": AHEAD, "secret": {}})
    there.store.put_webhook_record(WebhookWrite(ENDPOINT, "wh_1", body, new_token(), None))
    steps: list[str] = []
    next_tx = plan_adoption(there.dsn).next_tx
    adopt(there.dsn, on_step=steps.append)
    [record] = there.store.get_webhook_records(ENDPOINT)
    assert json.loads(record.body) == {"url": "https://example.com", "from_tx": next_tx, "secret": {}}
    assert "1 webhooks" in steps[-1]
    work(in_new(there), "new")
    assert min(event.tx for event in settled(there) if event.job_id == "new") >= next_tx


def test_an_adoption_is_safe_to_repeat(there: Moved, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "adopt", "--url", there.dsn]) == 1
    assert "Add --yes" in capsys.readouterr().out
    assert plan_adoption(there.dsn).needed
    assert main(["migrate", "adopt", "--url", there.dsn, "--yes"]) == 0
    assert f"{JOBS:,} jobs changed" in capsys.readouterr().out
    before = settled(there)
    assert main(["migrate", "adopt", "--url", there.dsn, "--yes"]) == 0
    assert "0 events and 0 jobs" in capsys.readouterr().out
    assert main(["migrate", "adopt", "--url", there.dsn]) == 0
    assert "nothing to adopt" in capsys.readouterr().out
    assert main(["migrate", "status", "--url", there.dsn]) == 0
    assert settled(there) == before


def test_an_adoption_that_failed_half_way_is_carried_on(there: Moved) -> None:
    def die(_: str) -> None:
        raise RuntimeError("the process dies")

    there.sql.execute(
        "update queuert.job_event set happened_at = happened_at - interval '1 day' where tx::text like '%1'"
    )
    with pytest.raises(RuntimeError):
        adopt(there.dsn, on_step=die)
    with pytest.raises(DatabaseMovedError):
        settled(there)
    adopt(there.dsn)
    assert len(settled(there)) == 3 * JOBS + 1


def test_an_adoption_that_failed_after_the_last_event_was_renumbered_is_carried_on(there: Moved) -> None:
    """Up to which number the old cluster had deleted events is forgotten, or new readers would miss all of them."""

    def die(_: str) -> None:
        raise RuntimeError("the process dies")

    there.sql.execute("update queuert.event_log set dropped_tx = '100'")
    with pytest.raises(RuntimeError):
        adopt(there.dsn, on_step=die)
    assert not plan_adoption(there.dsn).ahead
    adopt(there.dsn)
    first = there.store.list_events(EventFilter(), PageRequest(limit=5, oldest_first=True))
    rest = settled(there, first.next_cursor)
    assert len([*first, *rest]) == 3 * JOBS + 1


def test_an_adoption_waits_for_no_worker_but_refuses(there: Moved) -> None:
    there.sql.execute(
        "insert into queuert.worker (id, name, host, pid, version, job_types, concurrency, running, state, started_at,"
        " seen_at, expires_at) values ('w', 'w', 'h', 1, '1', '{}', 1, 0, 'running', now(), now(), now() + '1 hour')"
    )
    with pytest.raises(MigrationError, match="workers must be stopped, 1 are alive"):
        adopt(there.dsn)
    adopt(there.dsn, force=True)
    assert len(settled(there)) == 3 * JOBS + 1


def test_cursors_of_before_the_move_are_refused_after_it(there: Moved) -> None:
    adopt(there.dsn)
    with pytest.raises(EventsLostError, match="another cluster") as lost:
        settled(there, there.old_cursor)
    assert settled(there, lost.value.cursor) == settled(there)


def test_numbers_go_on_above_those_that_replication_has_brought(there: Moved) -> None:
    """Logical replication copies rows, and no sequences."""
    there.sql.execute("alter sequence queuert.job_event_seq restart")
    adopt(there.dsn)
    work(in_new(there), "new")
    found = settled(there)
    assert [event.kind for event in found if event.job_id == "new"] == ["created", "started", "completed"]
    assert min(event.seq for event in found if event.job_id == "new") > max(
        event.seq for event in found if event.job_id != "new"
    )


def test_a_database_whose_numbers_go_on_is_adopted_as_it_is(harness: StoreHarness) -> None:
    """As after pg_upgrade, which makes another cluster and keeps the numbers."""
    work(harness, "a", "b")
    harness.sql.execute("update queuert.event_log set system = '1'")
    with pytest.raises(DatabaseMovedError):
        settled(harness)
    assert adopt(harness.dsn).events == 0
    assert [event.kind for event in settled(harness)] == 2 * ["created", "started", "completed"]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_database_that_was_moved_before_the_revision_is_found_by_its_numbers(bare_dsn: str, ahead: bool) -> None:
    migrations.upgrade(bare_dsn, revision="0008")
    with psycopg.connect(bare_dsn, autocommit=True) as sql:
        sql.execute(
            "insert into queuert.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt)"
            " values ('created', 'ready', 'a', 'a', 0, 'work', 'work', 0)"
        )
        if ahead:
            sql.execute("update queuert.job_event set tx = '500000000'")
    migrations.upgrade(bare_dsn)
    moved_here = how_moved(bare_dsn)
    assert (moved_here is not None) == ahead
    adopt(bare_dsn)
    assert how_moved(bare_dsn) is None


def test_only_the_owner_adopts(harness: StoreHarness) -> None:
    harness.sql.execute("update queuert.event_log set system = '1'")
    harness.sql.execute(sql.SQL("create role adopts_not login password {}").format(password_of(harness.dsn)))
    try:
        harness.sql.execute("grant usage on schema queuert to adopts_not")
        harness.sql.execute("grant select on all tables in schema queuert to adopts_not")
        dsn = make_conninfo(harness.dsn, user="adopts_not")
        with pytest.raises(MigrationError, match="owner"):
            adopt(dsn)
    finally:
        harness.sql.execute("drop owned by adopts_not")
        harness.sql.execute("drop role adopts_not")


def test_streams_and_archives_go_on_after_an_adoption(there: Moved) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from queuert.spark.errors import OffsetError
    from tests.spark.read_support import read_plainly, read_range, stream_reader

    everything = ReadAllAvailable()
    reader = stream_reader(there.dsn)
    with pytest.raises(DatabaseMovedError):
        reader.initialOffset()
    with pytest.raises(DatabaseMovedError):
        read_plainly(there.dsn, "chains")
    adopt(there.dsn)
    work(in_new(there), "new")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, everything)
    assert len(read_range(reader, begin, end)) == 3 * JOBS + 1 + 3
    there.store.start_jobs([NewJob("next", "work", "1")])
    assert [row["job_id"] for row in read_range(reader, end, reader.latestOffset(end, everything))] == ["next"]
    closed = [row for row in read_plainly(there.dsn, "chains") if row["status"] == "completed"]
    assert len(closed) == JOBS + 1
    with pytest.raises(OffsetError, match="startingOffsets"):
        reader.latestOffset({"tx": 500_000_900, "seq": 0, "system": "1"}, everything)
