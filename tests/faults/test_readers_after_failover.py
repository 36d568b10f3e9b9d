"""Readers of the event log, when a standby takes the place of the primary: they miss nothing, or they are told."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from queuert import migrations
from queuert.embedded import EmbeddedServerError
from queuert.errors import EventsLostError
from queuert.event_log import EventFilter
from queuert.state import Store
from queuert.state.paging import PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob
from tests.conftest import server_is_missing
from tests.faults.standby import Pair

pytestmark = pytest.mark.fault


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        pair.start()
        migrations.upgrade(pair.primary.dsn())
        yield pair
    except EmbeddedServerError as error:
        server_is_missing(error)
    finally:
        pair.close()


def opened(dsn: str) -> Store:
    store = PostgresState(dsn).sync_store()
    store.open()
    return store


def start(dsn: str, prefix: str, count: int) -> list[str]:
    """Start jobs, each in a transaction of its own; their ids."""
    store = opened(dsn)
    names = [f"{prefix}-{number}" for number in range(count)]
    try:
        for name in names:
            store.start_jobs([NewJob(name, "work", "1")])
    finally:
        store.close()
    return names


def followed(dsn: str, cursor: str | None = None) -> tuple[list[str], str | None]:
    """What a reader hears from a cursor on, and the cursor behind it."""
    store = opened(dsn)
    found: list[str] = []
    try:
        while True:
            page = store.list_events(EventFilter(), PageRequest(limit=30, oldest_first=True, cursor=cursor))
            found += [event.job_id for event in page]
            cursor = page.items[-1].cursor if page.items else cursor
            if not page.items:
                return found, cursor
    finally:
        store.close()


def test_a_reader_is_reported_when_its_last_event_was_lost_in_a_failover(pair: Pair) -> None:
    """The numbers of the lost transactions are given again: what gets them lies before the cursor."""
    start(pair.primary.dsn(), "kept", 10)
    pair.caught_up()
    pair.proxy.black_hole()
    start(pair.primary.dsn(), "lost", 60)
    _, cursor = followed(pair.primary.dsn())
    pair.fail_over()
    names = start(pair.address, "after", 100)

    with pytest.raises(EventsLostError, match=r"timeline 1.*timeline 2") as lost:
        followed(pair.address, cursor)
    # Who begins anew hears of all. Who goes on at the same number has been told what that leaves out.
    everything, _ = followed(pair.address)
    assert [name for name in everything if name.startswith("after")] == names
    onward, _ = followed(pair.address, lost.value.cursor)
    assert set(onward) < set(names)


def test_a_reader_goes_on_by_itself_when_its_last_event_outlived_the_failover(pair: Pair) -> None:
    """As after each switch that was planned, and each failover to a synchronous standby."""
    before = start(pair.primary.dsn(), "kept", 10)
    found, cursor = followed(pair.primary.dsn())
    assert found == before
    pair.caught_up()
    pair.fail_over()
    # Its own transactions, which write no events, have numbers as well: the next events come some numbers later.
    names = start(pair.address, "after", 10)
    assert followed(pair.address, cursor)[0] == names


def test_a_reader_hears_what_is_new_on_a_standby_that_lags(pair: Pair) -> None:
    """Nothing is lost there: it comes later."""
    names = start(pair.primary.dsn(), "first", 3)
    pair.caught_up()
    pair.proxy.black_hole()
    names += start(pair.primary.dsn(), "second", 3)
    _, cursor = followed(pair.primary.dsn())
    assert followed(pair.standby.dsn()) == (names[:3], followed(pair.standby.dsn())[1])
    assert followed(pair.standby.dsn(), cursor) == ([], cursor)


def test_the_timeline_is_known_from_the_first_write_of_a_promoted_standby(pair: Pair) -> None:
    """The checkpoint that tells of it comes minutes later where nobody asks for one."""
    start(pair.primary.dsn(), "kept", 1)
    pair.caught_up()
    with psycopg.connect(pair.standby.dsn(), autocommit=True) as standby:
        standby.execute("select pg_promote()")
        _, cursor = followed(pair.standby.dsn())
        assert cursor is not None
        row = standby.execute("select pg_walfile_name(pg_current_wal_lsn())").fetchone()
    assert row is not None
    assert int(row[0][:8], 16) == 2
    from queuert.state.postgres.event_log import EventCursor

    assert EventCursor.decode(cursor).timeline == 2


def test_a_stream_is_reported_when_its_last_event_was_lost_in_a_failover(pair: Pair) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from tests.spark.read_support import read_range, stream_reader

    url = pair.address
    kept = start(pair.primary.dsn(), "kept", 10)
    pair.caught_up()
    reader = stream_reader(url)
    begin = reader.initialOffset()
    safe = reader.latestOffset(begin, ReadAllAvailable())
    pair.proxy.black_hole()
    start(pair.primary.dsn(), "lost", 60)
    lost = reader.latestOffset(safe, ReadAllAvailable())
    pair.fail_over()
    names = start(url, "after", 100)

    with pytest.raises(EventsLostError, match="failOnDataLoss"):
        reader.latestOffset(lost, ReadAllAvailable())
    # A batch that was planned before: its end is not there any more.
    with pytest.raises(EventsLostError):
        read_range(stream_reader(url), safe, lost)
    # A stream that was not so far misses nothing and hears nothing twice, whatever the numbers.
    end = reader.latestOffset(safe, ReadAllAvailable())
    assert [row["job_id"] for row in read_range(reader, safe, end)] == names
    assert [row["job_id"] for row in read_range(reader, begin, safe)] == kept
    careless = stream_reader(url, failOnDataLoss="false")
    end = careless.latestOffset(lost, ReadAllAvailable())
    heard = [row["job_id"] for row in read_range(careless, lost, end)]
    assert set(heard) < set(names)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
