"""The log is read page by page: newest first to look, oldest first to follow, and nothing comes in behind a reader."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain
from queuert.errors import ConfigurationError, InvalidCursorError
from queuert.event_log import EventFilter, EventKind, EventLevel
from queuert.jobs import JobError, JobStatus
from queuert.state.adapter import Capability, StateAdapter
from queuert.state.paging import PageRequest
from queuert.state.postgres import PostgresState, event_log
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.state.types import Finish, FinishKind, NewJob
from tests.support.store_harness import StoreHarness

EVERYTHING = EventFilter()
number = JobType("number", input=int, output=int)
other = JobType("other", input=int, output=int)
JOB_TYPES = JobTypes(number, other)


def ids(harness: StoreHarness, filter: EventFilter = EVERYTHING, **page: object) -> list[str]:
    """Of all pages."""
    found: list[str] = []
    cursor = None
    while True:
        one = harness.store.list_events(filter, PageRequest(cursor=cursor, **page))  # type: ignore[arg-type]
        found += [event.job_id for event in one]
        cursor = one.next_cursor
        if cursor is None:
            return found


def test_an_event_as_a_value(harness: StoreHarness) -> None:
    harness.start("a")
    error = JobError("handler", "no", "ValueError", "File x")
    harness.store.finish([Finish(harness.claim()[0], FinishKind.FAIL, error=error)])
    failed, started, created = harness.store.list_events(EVERYTHING, PageRequest())
    assert (failed.kind, failed.status, failed.error) == (EventKind.FAILED, JobStatus.FAILED, error)
    assert (failed.job_id, failed.chain_id, failed.chain_index, failed.type, failed.chain_type) == (
        "a", "a", 0, "work", "work",
    )  # fmt: skip
    assert (failed.attempt, failed.worker, failed.closes_chain) == (1, "me", True)
    assert (created.started_at, created.worker, created.error, created.closes_chain) == (None, None, None, False)
    assert started.scheduled_at == created.scheduled_at
    assert created.seq < started.seq < failed.seq
    assert created.tx < started.tx < failed.tx


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_pages(harness: StoreHarness, oldest_first: bool, limit: int) -> None:
    """A statement's events have one transaction: they are told apart by their numbers."""
    harness.start("a", "b", "c", "d", "e")
    harness.start("f")
    harness.start("g")
    names = list("abcdefg") if oldest_first else list("gfedcba")
    assert ids(harness, limit=limit, oldest_first=oldest_first) == names


def test_filters(harness: StoreHarness) -> None:
    harness.start("a")
    harness.start("b", type="other")
    harness.claim()
    assert ids(harness, EventFilter(types=("other",))) == ["b"]
    assert ids(harness, EventFilter(kinds=("started",))) == ["a"]
    assert ids(harness, EventFilter(chain_id="a")) == ["a", "a"]
    assert ids(harness, EventFilter(types=("other",), kinds=("started",))) == []
    assert ids(harness, EventFilter(types=())) == []


@pytest.mark.parametrize("oldest_first", [False, True])
def test_a_page_looks_at_so_many_and_no_more(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, oldest_first: bool
) -> None:
    """It may be empty and still say where to go on."""
    monkeypatch.setattr(event_log, "LOOKED_AT", 4)
    harness.start(*"abcdefghij")
    filter = EventFilter(chain_id="j" if oldest_first else "a")
    page = harness.store.list_events(filter, PageRequest(oldest_first=oldest_first))
    assert page.items == ()
    assert page.next_cursor is not None
    assert ids(harness, filter, oldest_first=oldest_first) == [filter.chain_id]


def test_who_follows_waits_for_older_transactions(harness: StoreHarness) -> None:
    """What commits late was not skipped; and who goes on from the last event that he has sees no event twice."""
    with psycopg.connect(harness.dsn) as late:
        harness.store.start_jobs([NewJob("late", "work", "1")], connection=late)
        harness.start("early")
        assert ids(harness) == ["early"]
        assert ids(harness, oldest_first=True) == []
        late.commit()
    page = harness.store.list_events(EVERYTHING, PageRequest(oldest_first=True))
    assert [event.job_id for event in page] == ["late", "early"]
    harness.start("next")
    page = harness.store.list_events(EVERYTHING, PageRequest(oldest_first=True, cursor=page.items[-1].cursor))
    assert [event.job_id for event in page] == ["next"]


def test_nothing_is_skipped_or_seen_twice(harness: StoreHarness) -> None:
    """Four writers, some of whose transactions take their time or come to nothing, and one who follows."""
    done = threading.Event()
    expected: set[str] = set()

    def write(writer: int) -> None:
        with psycopg.connect(harness.dsn) as connection:
            for turn in range(40):
                names = [f"{writer}-{turn}-{place}" for place in range(1 + turn % 3)]
                harness.store.start_jobs([NewJob(name, "work", "1") for name in names], connection=connection)
                if turn % 5 == 0:
                    connection.rollback()
                    continue
                expected.update(names)
                if turn % 2:
                    connection.commit()
            connection.commit()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]

    def wait() -> None:
        for thread in threads:
            thread.join()
        done.set()

    for thread in threads:
        thread.start()
    threading.Thread(target=wait).start()
    seen: list[str] = []
    cursor = None
    while True:
        last = done.is_set()
        page = harness.store.list_events(EVERYTHING, PageRequest(limit=10, oldest_first=True, cursor=cursor))
        seen += [event.job_id for event in page]
        cursor = page.items[-1].cursor if page.items else cursor
        if last and not page.items:
            break
    stored = {row[0] for row in harness.sql.execute("SELECT id FROM queuert.job")}
    assert len(seen) == len(set(seen))
    assert set(seen) == stored
    assert stored <= expected


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "WyIxIiwgIngiXQ==", "WyJ4IiwgIjEiXQ==", "WyItMSIsICIxIl0=", "WyIxODQ0Njc0NDA3MzcwOTU1MTYxNiIsICIxIl0="],
)
def test_cursors_of_something_else(harness: StoreHarness, cursor: str) -> None:
    with pytest.raises(InvalidCursorError):
        harness.store.list_events(EVERYTHING, PageRequest(cursor=cursor))


# --- by clients -------------------------------------------------------------------------------------------------------


def test_by_a_client(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        first, second = client.start_chains([NewChain(number, 1), NewChain(other, 1)])
        assert [one.job_id for one in client.list_events(job_types=[other])] == [second.id]
        assert [one.job_id for one in client.list_events(chain=first, kinds=[EventKind.CREATED])] == [first.id]
        assert len(client.list_events(kinds=["started"])) == 0
        for wrong in (["start"], ["created", "Started"]):
            with pytest.raises(ConfigurationError, match=r"kinds must be kinds of events .created, blocked, .* got '"):
                client.list_events(kinds=wrong)
            with pytest.raises(ConfigurationError, match="must be kinds of events"):
                client.follow_events(kinds=wrong)
        client.set_event_level("off", job_types=[number])
        client.set_event_level(EventLevel.TERMINAL)
        client.set_event_retention(3)
        log = client.get_event_log()
        assert (log.level, log.levels, log.keep_days) == ("terminal", {"number": "off"}, 3)
        client.set_event_level(None, job_types=["number"])
        assert client.get_event_log().levels == {}
        assert client.maintain_event_log().deleted == 0


def test_the_end_of_a_log_whose_newer_events_were_dropped(harness: StoreHarness, dsn: str) -> None:
    """Its day was locked, so retention went on with a later one. Nothing behind the end is lost."""
    harness.start("a")
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("UPDATE queuert.event_log SET dropped_tx = pg_current_xact_id()")
    end = harness.store.event_log_end()
    harness.start("b")
    found = harness.store.list_events(EVERYTHING, PageRequest(cursor=end.cursor, oldest_first=True))
    assert [event.job_id for event in found] == ["b"]


async def test_by_an_asynchronous_client(dsn: str) -> None:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES) as client:
        chain = await client.start_chain(number, 1)
        [event] = await client.list_events(oldest_first=True)
        assert (event.job_id, event.kind) == (chain.id, EventKind.CREATED)
        await client.set_event_level("off")
        await client.start_chain(number, 1)
        assert len(await client.list_events()) == 1
        assert (await client.get_event_log()).level is EventLevel.OFF
        await client.set_event_retention(1)
        assert (await client.maintain_event_log()).dropped == ()


def test_what_makes_no_sense_is_refused(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        with pytest.raises(ConfigurationError, match="event level must be one of"):
            client.set_event_level("loud")
        with pytest.raises(ConfigurationError, match="pass job_types="):
            client.set_event_level(None)
        with pytest.raises(ConfigurationError, match="kinds"):
            client.list_events(kinds="started")
        with pytest.raises(ConfigurationError, match="days"):
            client.set_event_retention(0)


@pytest.mark.parametrize("state", ["postgres", "redis", "sqlite file", "sqlite"])
def test_all_stores_have_a_log(state: str, tmp_path: Path) -> None:
    """A state says so before it has a server."""
    states: dict[str, StateAdapter] = {
        "postgres": PostgresState("postgresql://nowhere.invalid/jobs"),
        "redis": RedisState("redis://nowhere.invalid"),
        "sqlite file": SQLiteState(tmp_path / "jobs.db"),
        "sqlite": SQLiteState(),
    }
    assert Capability.EVENTS in states[state].capabilities
