"""The event log of Redis: its bounds, its cursors when the server has lost something, and its entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from queuert import AsyncClient, JobType, JobTypes
from queuert.embedded import EmbeddedRedis
from queuert.errors import ConfigurationError, EventsLostError
from queuert.event_log import EventFilter, JobEvent
from queuert.ids import new_id
from queuert.state.paging import PageRequest
from queuert.state.redis import RedisState, event_log
from queuert.state.redis.sync_store import RedisStore
from queuert.state.types import NewJob
from queuert.testing.redis_scan import scan
from tests.support.waiting import WAIT

EVERYTHING = EventFilter()
DAY = 86_400_000_000
number = JobType("number", input=int, output=int)


class Log:
    """A store with a namespace of its own, on a server that holds nothing else."""

    def __init__(self, url: str) -> None:
        self.redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self.redis.flushall()
        self.namespace = new_id()
        self.state = RedisState(url, namespace=self.namespace)
        self.store: RedisStore = self.state.sync_store(max_connections=1)
        self.store.open()

    def close(self) -> None:
        self.store.close()
        self.redis.close()

    def key(self, name: str) -> str:
        return f"{{queuert:{self.namespace}}}:{name}"

    def start(self, *ids: str) -> None:
        self.store.start_jobs([NewJob(id, "work", "1", id_chosen=True) for id in ids])

    def start_apart(self, count: int) -> list[str]:
        ids = [f"{number}" for number in range(count)]
        for id in ids:
            self.start(id)
        return ids

    def events(self, cursor: str | None = None, filter: EventFilter = EVERYTHING, **page: Any) -> list[JobEvent]:
        """All events after a cursor, by pages."""
        found: list[JobEvent] = []
        while True:
            got = self.store.list_events(filter, PageRequest(cursor=cursor, **{"oldest_first": True, **page}))
            found += got.items
            cursor = got.next_cursor
            if cursor is None:
                return found

    def ids(self, cursor: str | None = None, **page: Any) -> list[str]:
        return [event.job_id for event in self.events(cursor, **page)]

    def lost(self, cursor: str) -> EventsLostError:
        with pytest.raises(EventsLostError) as caught:
            self.events(cursor)
        return caught.value

    def age(self, days: int) -> None:
        """Move all events into the past."""
        stream = self.key("events")
        entries = self.redis.xrange(stream)
        self.redis.delete(stream)
        for id, fields in entries:
            at, _, rest = fields["e"].partition(",")
            self.redis.xadd(stream, {"e": f"[{int(at[1:]) - days * DAY},{rest}"}, id=id)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def log(server: EmbeddedRedis) -> Iterator[Log]:
    log = Log(server.url())
    yield log
    assert scan(log.redis, log.namespace) == []
    log.close()


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_old_events_are_dropped_and_readers_get_an_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "CHUNK", 20)
    old = log.start_apart(30)
    first, *_, last_old = log.events()
    assert not log.store.maintain_event_log().deleted
    log.age(16)
    log.start("new", "newer")
    done = log.store.maintain_event_log()
    assert (done.deleted, done.more) == (20, True)
    done = log.store.maintain_event_log()
    assert (done.deleted, done.more) == (10, False)
    assert log.ids() == ["new", "newer"]
    error = log.lost(first.cursor)
    assert f"retention deleted events up to number {len(old)}" in str(error)
    assert log.ids(error.cursor) == log.ids(last_old.cursor) == ["new", "newer"]
    assert log.ids(first.cursor, oldest_first=False) == []
    # Numbers are not used again, even if the log is empty.
    log.age(16)
    end = log.store.event_log_end().cursor
    assert log.store.maintain_event_log().deleted == 2
    log.start("last")
    assert log.ids(end) == ["last"]


def test_the_log_keeps_so_many_events(log: Log) -> None:
    """Writers drop whole nodes of the stream by the thousand; maintenance drops the rest exactly, by entries."""
    log.store.set_event_retention(max_events=1_000)
    assert (log.store.get_event_log().max_events, log.store.get_event_log().keep_days) == (1_000, 14)
    cursor = log.store.event_log_end().cursor
    for part in range(4):
        log.start(*(f"{part}-{place}" for place in range(1_000)))
    assert 1_000 <= len(log.ids(limit=1_000)) <= 2_000
    log.store.maintain_event_log()
    assert log.ids(limit=1_000) == [f"3-{place}" for place in range(1_000)]
    assert "retention deleted events up to number 3000" in str(log.lost(cursor))
    for wrong in (999, 10**10, 1.5):
        with pytest.raises(ConfigurationError, match="max_events must be an integer between 1,000 and"):
            log.store.set_event_retention(max_events=wrong)  # type: ignore[arg-type]


def test_one_script_writes_thousands_of_events(log: Log) -> None:
    """In entries of a hundred, so that no page decodes much more than it shows."""
    ids = [f"{place}" for place in range(2_345)]
    log.start(*ids)
    assert log.redis.xlen(log.key("events")) == 24
    assert log.ids(limit=1_000) == log.ids(limit=99) == ids
    assert log.ids(limit=1_000, oldest_first=False) == ids[::-1]
    middle = log.events()[1_234]
    assert log.ids(middle.cursor, limit=77) == ids[1_235:]
    assert log.ids(middle.cursor, limit=77, oldest_first=False) == ids[:1_234][::-1]


def test_a_page_reads_so_many_events_or_bytes_and_no_more(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = log.start_apart(250)
    for name, bound in (("LOOKED_AT", 4), ("READ_BYTES", 500)):
        monkeypatch.setattr(event_log, name, bound)
        for oldest_first, id in ((True, ids[-1]), (False, ids[0])):
            filter = EventFilter(chain_id=id)
            assert log.store.list_events(filter, PageRequest(oldest_first=oldest_first)).items == ()
            [found] = log.events(filter=filter, oldest_first=oldest_first)
            assert found.job_id == id


# --- what the server has lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("written_since", [0, 1, 5])
def test_an_emptied_server_is_an_error(log: Log, written_since: int) -> None:
    """Also for a reader that has not read any event, and however much was written since."""
    before_all = log.store.event_log_end().cursor
    log.start("a", "b")
    cursors = [before_all, *(event.cursor for event in log.events())]
    log.redis.flushall()
    new = [f"new {place}" for place in range(written_since)]
    for id in new:
        log.start(id)
    for cursor in cursors:
        error = log.lost(cursor)
        assert "before it was emptied" in str(error)
        assert error.cursor is not None
        assert log.ids(error.cursor) == new


def test_another_namespace_is_an_error(log: Log, server: EmbeddedRedis) -> None:
    log.start("a")
    [event] = log.events()
    other = RedisState(server.url(), namespace="other").sync_store()
    other.open()
    other.start_jobs([NewJob("x", "work", "1")])
    with pytest.raises(EventsLostError, match="another server or namespace"):
        other.list_events(EVERYTHING, PageRequest(cursor=event.cursor))
    other.close()


@pytest.mark.parametrize("written_since", [0, 1, 2, 5])
def test_a_server_that_lost_its_last_writes_is_an_error(log: Log, written_since: int) -> None:
    """As after a failover to a replica that had not received them: new events get numbers that were read before."""
    log.start("a")
    kept = log.store.event_log_end().cursor
    older = {
        name: log.redis.execute_command("DUMP", log.key(name), NEVER_DECODE=True) for name in ("events", "event_log")
    }
    log.start("b", "c")
    read = log.store.event_log_end().cursor
    for name, dump in older.items():
        log.redis.restore(log.key(name), 0, dump, replace=True)
    new = [f"new {place}" for place in range(written_since)]
    for id in new:
        log.start(id)
    error = log.lost(read)
    assert "the server lost its last writes" in str(error)
    assert log.ids(error.cursor) == new[2:]
    assert log.ids(kept) == new


@pytest.mark.parametrize("evicted", ["events", "event_log"])
def test_readers_get_an_error_if_a_part_of_the_log_was_evicted_and_jobs_go_on(log: Log, evicted: str) -> None:
    log.start("a", "b")
    read = log.events()[0].cursor
    log.redis.delete(log.key(evicted))
    log.start("c")
    assert log.ids() == ["c"]
    assert log.store.count_jobs()[0].count == 3
    assert log.ids(log.lost(read).cursor) == ["c"]


@pytest.fixture
async def client(log: Log) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(log.state, JobTypes(number)) as client:
        yield client


async def test_a_follower_of_an_emptied_server_gets_an_error(log: Log, client: AsyncClient) -> None:
    async with client.follow_events() as events, asyncio.timeout(WAIT):
        chain = await client.start_chain(number, 1)
        assert (await anext(events)).job_id == chain.id
        log.redis.flushall()
        await client.start_chain(number, 2)
        with pytest.raises(EventsLostError, match="emptied"):
            await anext(events)
