"""Readers of the event log after a failover to a standby: they miss no event, or they get an error."""

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
    """Start jobs, each in a transaction of its own; return their ids."""
    store = opened(dsn)
    names = [f"{prefix}-{number}" for number in range(count)]
    try:
        for name in names:
            store.start_jobs([NewJob(name, "work", "1")])
    finally:
        store.close()
    return names


def followed(dsn: str, cursor: str | None = None) -> tuple[list[str], str | None]:
    """Return the events that a reader gets from a cursor on, and the cursor after them."""
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


def end(dsn: str) -> str:
    """Return the cursor of the end of the log."""
    store = opened(dsn)
    try:
        return store.event_log_end().cursor
    finally:
        store.close()


def test_a_reader_is_reported_when_its_last_event_was_lost_in_a_failover(pair: Pair) -> None:
    """New transactions get the numbers of the lost ones, so their events are before the cursor."""
    start(pair.primary.dsn(), "kept", 10)
    pair.caught_up()
    pair.proxy.black_hole()
    start(pair.primary.dsn(), "lost", 60)
    _, cursor = followed(pair.primary.dsn())
    pair.fail_over()
    names = start(pair.address, "after", 100)

    with pytest.raises(EventsLostError, match=r"timeline 1.*timeline 2") as lost:
        followed(pair.address, cursor)
    # A reader that begins again gets all events. A reader that continues at the same number was told what it misses.
    everything, _ = followed(pair.address)
    assert [name for name in everything if name.startswith("after")] == names
    onward, _ = followed(pair.address, lost.value.cursor)
    assert set(onward) < set(names)


def test_a_reader_goes_on_by_itself_when_its_last_event_outlived_the_failover(pair: Pair) -> None:
    """As after each planned switch, and each failover to a synchronous standby."""
    before = start(pair.primary.dsn(), "kept", 10)
    found, cursor = followed(pair.primary.dsn())
    assert found == before
    pair.caught_up()
    pair.fail_over()
    # The server's own transactions, which write no events, have numbers as well: the next events have higher numbers.
    names = start(pair.address, "after", 10)
    assert followed(pair.address, cursor)[0] == names


@pytest.mark.quick
def test_a_reader_that_waits_at_the_end_of_a_quiet_log_goes_on_after_a_failover(pair: Pair) -> None:
    """New transactions have lower numbers than the last ones of the primary, which wrote no events."""
    start(pair.primary.dsn(), "kept", 3)
    pair.caught_up()
    pair.proxy.black_hole()
    with psycopg.connect(pair.primary.dsn(), autocommit=True) as primary:
        for _ in range(200):
            primary.execute("select pg_current_xact_id()")
    cursor = end(pair.primary.dsn())
    pair.fail_over()
    names = start(pair.address, "after", 3)
    assert followed(pair.address, cursor)[0] == names


def test_a_reader_that_waited_behind_an_event_that_a_failover_lost_is_reported(pair: Pair) -> None:
    start(pair.primary.dsn(), "kept", 3)
    pair.caught_up()
    pair.proxy.black_hole()
    start(pair.primary.dsn(), "lost", 3)
    cursor = end(pair.primary.dsn())
    pair.fail_over()
    start(pair.address, "after", 100)
    with pytest.raises(EventsLostError, match=r"timeline 1.*timeline 2"):
        followed(pair.address, cursor)


@pytest.mark.quick
def test_a_reader_hears_what_is_new_on_a_standby_that_lags(pair: Pair) -> None:
    """No event is lost there: it arrives later."""
    names = start(pair.primary.dsn(), "first", 3)
    pair.caught_up()
    pair.proxy.black_hole()
    names += start(pair.primary.dsn(), "second", 3)
    _, cursor = followed(pair.primary.dsn())
    assert followed(pair.standby.dsn()) == (names[:3], followed(pair.standby.dsn())[1])
    assert followed(pair.standby.dsn(), cursor) == ([], cursor)


def test_the_timeline_is_known_from_the_first_write_of_a_promoted_standby(pair: Pair) -> None:
    """The checkpoint with the new timeline comes minutes later if nobody requests one."""
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
    # This batch was planned before the failover: its end does not exist any more.
    with pytest.raises(EventsLostError):
        read_range(stream_reader(url), safe, lost)
    # A stream that had not read so far misses no event and gets none twice, whatever the numbers.
    end = reader.latestOffset(safe, ReadAllAvailable())
    assert [row["job_id"] for row in read_range(reader, safe, end)] == names
    assert [row["job_id"] for row in read_range(reader, begin, safe)] == kept
    careless = stream_reader(url, failOnDataLoss="false")
    end = careless.latestOffset(lost, ReadAllAvailable())
    heard = [row["job_id"] for row in read_range(careless, lost, end)]
    assert set(heard) < set(names)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
