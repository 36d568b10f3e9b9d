"""Following the event log, on each store."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, PostgresState, Processors
from queuert.client import event_feed
from queuert.client.async_following import AsyncEventFollower
from queuert.errors import (
    ChainNotFoundError,
    ClosedError,
    ConfigurationError,
    EventsLostError,
    InvalidCursorError,
    StateUnavailableError,
)
from queuert.event_log import EventFilter, EventKind, JobEvent
from queuert.ids import new_id
from queuert.new_chain import NewChain
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStore
from queuert.state.paging import Page, PageRequest
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.state.sync_store import Store
from queuert.worker.attempt import Attempt
from tests.support.waiting import WAIT, in_time, until

echo = JobType("echo", input=int, output=int)
other = JobType("other", input=int, output=int)
JOB_TYPES = JobTypes(echo, other)


@pytest.fixture(params=["postgres", "redis", "sqlite", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> StateAdapter:
    """Each store."""
    if request.param == "sqlite":
        return SQLiteState(tmp_path / "jobs.db")
    if request.param == "memory":
        return SQLiteState()
    if request.param == "redis":
        return RedisState(request.getfixturevalue("redis_url"), namespace=new_id())
    return PostgresState(request.getfixturevalue("dsn"))


@pytest.fixture
async def client(state: StateAdapter) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(state, JOB_TYPES) as client:
        yield client


def _processors() -> Processors:
    processors = Processors(JOB_TYPES)

    @processors.handles(echo)
    async def handle(attempt: Attempt[int, int]) -> int:
        return attempt.input

    return processors


async def _take(follower: AsyncEventFollower, count: int) -> list[JobEvent]:
    async with asyncio.timeout(WAIT):
        return [await anext(follower) for _ in range(count)]


def _summary(events: list[JobEvent]) -> list[tuple[str, str]]:
    return [(one.job_id, one.kind) for one in events]


async def test_a_chain_is_followed_from_before_its_start_to_its_end(client: AsyncClient) -> None:
    cursor = await client.event_cursor()
    chain = await client.start_chain(echo, 1)
    async with InProcessWorker(client, _processors()), asyncio.timeout(WAIT):
        events = [event async for event in client.follow(chain, after=cursor)]
    assert _summary(events) == [(chain.id, "created"), (chain.id, "started"), (chain.id, "completed")]


async def test_a_follower_gets_what_is_committed_after_it_subscribed(client: AsyncClient) -> None:
    async with client.follow_events() as events:
        chains = [await client.start_chain(echo, number) for number in range(3)]
        assert _summary(await _take(events, 3)) == [(chain.id, "created") for chain in chains]


async def test_a_follower_continues_after_a_cursor(client: AsyncClient) -> None:
    chains = await asyncio.gather(*(client.start_chain(echo, number) for number in range(5)))
    async with client.follow_events(after="beginning") as events:
        first = await _take(events, 2)
        cursor = events.cursor
    assert cursor == first[-1].cursor
    async with client.follow_events(after=cursor) as events:
        rest = await _take(events, 3)
        later = await client.start_chain(echo, 6)
        rest += await _take(events, 1)
    assert [one.job_id for one in first + rest][5:] == [later.id]
    assert {one.job_id for one in first + rest} == {chain.id for chain in chains} | {later.id}


async def test_a_follower_gets_only_what_its_filter_selects(client: AsyncClient) -> None:
    async with (
        client.follow_events(job_types=[other]) as of_type,
        client.follow_events(kinds=[EventKind.CANCELLED]) as of_kind,
    ):
        first = await client.start_chain(echo, 1)
        second = await client.start_chain(other, 1)
        await first.cancel()
        assert _summary(await _take(of_type, 1)) == [(second.id, "created")]
        assert _summary(await _take(of_kind, 1)) == [(first.id, "cancelled")]
        assert await of_kind.next(timeout=0) is None
        assert not of_kind.ended


async def test_following_ends_with_the_chain(client: AsyncClient) -> None:
    cancelled, closed, deleted = await asyncio.gather(*(client.start_chain(echo, number) for number in range(3)))
    await closed.cancel()
    async with asyncio.timeout(WAIT), client.follow(cancelled) as of_cancelled, client.follow(deleted) as of_deleted:
        assert await of_cancelled.next(timeout=0) is None
        await cancelled.cancel()
        assert [event.kind async for event in of_cancelled][-1] == "cancelled"
        assert of_cancelled.ended
        after_close = await client.event_cursor()
        assert [event async for event in client.follow(closed, after=after_close)] == []
        await deleted.cancel()
        assert [event.kind async for event in of_deleted][-1] == "cancelled"
        cursor = of_deleted.cursor
        await client.delete_chains([deleted])
        assert _summary([event async for event in client.follow(deleted, after=cursor)]) == [(deleted.id, "deleted")]


async def test_following_a_chain_that_does_not_exist_raises(client: AsyncClient) -> None:
    async with asyncio.timeout(WAIT):
        with pytest.raises(ChainNotFoundError, match="nothing"):
            await anext(client.follow("nothing"))


async def test_following_ends_if_the_end_of_the_chain_is_not_logged(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "CHECK", 0.0)
    await client.set_event_level("off")
    chain = await client.start_chain(echo, 1)
    async with asyncio.timeout(WAIT), client.follow(chain) as events:
        await chain.cancel()
        assert [event async for event in events] == []


async def test_a_slow_follower_misses_nothing(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "QUEUE", 3)
    async with client.follow_events() as slow, client.follow_events() as quick:
        started = [chain.id for chain in await client.start_chains([_new(number) for number in range(10)])]
        assert {one.job_id for one in await _take(quick, 10)} == set(started)  # It was too slow as well.
        started += [(await client.start_chain(echo, number)).id for number in range(3)]
        assert [one.job_id for one in await _take(quick, 3)] == started[10:]
        read = [one.job_id for one in await _take(slow, 13)]
        assert read[10:] == started[10:]
        assert set(read) == set(started)
        assert await slow.next(timeout=0) is None


async def test_a_follower_whose_queue_is_full_before_it_reads_begins_where_it_joined(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "QUEUE", 3)
    await client.start_chains([_new(number) for number in range(5)])
    async with client.follow_events(after="beginning") as events:
        await _take(events, 5)  # What is visible now is before what the next one joins.
    async with client.follow_events() as slow, client.follow_events() as other:
        assert slow.cursor is not None
        started = {chain.id for chain in await client.start_chains([_new(number) for number in range(10)])}
        assert {one.job_id for one in await _take(other, 10)} == started  # So the feed has read them for both.
        assert {one.job_id for one in await _take(slow, 10)} == started
        assert await slow.next(timeout=0) is None


@pytest.mark.parametrize("after", [None, "now", "beginning"])
async def test_the_cursor_moves_on_before_any_event_has_matched(client: AsyncClient, after: str | None) -> None:
    await client.start_chain(echo, 0)
    begin = await client.event_cursor()
    failures = client.follow_events(kinds=[EventKind.FAILED], after=begin if after == "now" else after)
    async with client.follow_events() as every, failures:
        for number in range(3):
            chain = await client.start_chain(echo, number)
            # From the queue, so that the feed has read it: perhaps after the one that was started first.
            while (passed := (await _take(every, 1))[0]).chain_id != chain.id:
                pass
            assert await failures.next(timeout=0) is None
            assert failures.cursor == passed.cursor
    async with client.follow_events(after=failures.cursor) as resumed:
        chain = await client.start_chain(echo, 1)
        assert _summary(await _take(resumed, 1)) == [(chain.id, "created")]


async def test_events_before_the_cursor_are_not_returned_if_the_feed_has_not_read_them_yet(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, may_read = event_feed.EventFeed._tick, threading.Event()
    async with client.follow_events() as others:
        with monkeypatch.context() as patch:
            patch.setattr(
                event_feed.EventFeed, "_tick", lambda feed, store: tick(feed, store) if may_read.is_set() else None
            )
            before = await client.start_chain(echo, 1)
            cursor = await client.event_cursor()
            async with client.follow_events(after=cursor) as events:
                assert await events.next(timeout=0) is None
                assert events.cursor == cursor
                may_read.set()
                assert _summary(await _take(others, 1)) == [(before.id, "created")]
                assert await events.next(timeout=0) is None
                assert events.cursor == cursor
                chain = await client.start_chain(echo, 2)
                assert _summary(await _take(events, 1)) == [(chain.id, "created")]


@pytest.mark.parametrize("seed", range(3))
async def test_a_reader_that_is_resumed_anywhere_gets_each_event_once(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(event_feed, "QUEUE", 2)
    random = Random(seed)
    readers: dict[tuple[str, ...], tuple[str | None, list[str]]] = {
        kinds: (cursor, [])
        for kinds in [("created",), ("cancelled",), ("created", "cancelled"), ("failed",)]
        for cursor in [await client.event_cursor()]
    }
    async with client.follow_events() as every:
        count = 0
        for _ in range(12):
            for chain in await client.start_chains([_new(number) for number in range(random.randrange(4))]):
                count += 1
                if random.random() < 0.5:
                    await chain.cancel()
                    count += 1
            for kinds, (cursor, got) in readers.items():
                async with client.follow_events(kinds=kinds, after=cursor) as events:
                    for _ in range(random.randrange(6)):
                        event = await events.next(timeout=0)
                        got += [event.cursor] if event is not None else []
                readers[kinds] = events.cursor, got
        await _take(every, count)
    logged = await client.list_events(oldest_first=True, limit=1_000)
    for kinds, (cursor, got) in readers.items():
        expected = [one.cursor for one in logged if one.kind in kinds]
        async with client.follow_events(kinds=kinds, after=cursor) as events:
            got += [one.cursor for one in await _take(events, len(expected) - len(got))]
            assert await events.next(timeout=0) is None
        assert got == expected


async def test_a_cancelled_call_loses_no_event(client: AsyncClient) -> None:
    async with client.follow_events() as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        chain = await client.start_chain(echo, 1)
        assert _summary(await _take(events, 1)) == [(chain.id, "created")]


async def test_followers_share_one_reader(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[EventFilter] = []
    ticks: list[Store] = []
    tick = event_feed.EventFeed._tick

    def counted_tick(feed: event_feed.EventFeed, store: Store) -> None:
        if not ticks:
            list_events = store.list_events

            def counted_read(filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
                reads.append(filter)
                return list_events(filter, page)

            monkeypatch.setattr(store, "list_events", counted_read)
        ticks.append(store)
        tick(feed, store)

    monkeypatch.setattr(event_feed.EventFeed, "_tick", counted_tick)
    followers = [client.follow_events() for _ in range(500)]
    for follower in followers:
        await follower.__aenter__()
    chain = await client.start_chain(echo, 1)
    for follower in followers:
        assert _summary(await _take(follower, 1)) == [(chain.id, "created")]
        await follower.aclose()
    assert 1 <= len(reads) <= len(ticks)


async def test_what_makes_no_sense_is_refused(client: AsyncClient) -> None:
    with pytest.raises(ConfigurationError, match="kinds"):
        client.follow_events(kinds="started")
    with pytest.raises(
        InvalidCursorError, match=r"after must be the cursor of an event, of a follower or of event_cursor\(\)"
    ):
        await anext(client.follow_events(after="nowhere"))


async def test_followers_end_with_their_client(state: StateAdapter) -> None:
    client = AsyncClient(state, JOB_TYPES)
    async with client.follow_events() as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(ClosedError):
            await waiting
    with pytest.raises(ClosedError):
        await anext(client.follow_events())


async def test_closing_a_follower_ends_its_reader_that_waits(client: AsyncClient) -> None:
    follower = client.follow_events()
    reading = asyncio.ensure_future(anext(follower, None))
    await until(lambda: follower._subscription is not None and follower._subscription.cursor, "it waits for an event")
    await follower.aclose()
    assert await in_time(reading) is None
    assert await in_time(follower.next()) is None


def test_closing_a_follower_in_another_thread_ends_its_reader_that_waits(state: StateAdapter) -> None:
    with Client(state, JOB_TYPES) as client, ThreadPoolExecutor(1) as threads:
        follower = client.follow_events()
        with follower:
            reading = threads.submit(lambda: list(follower))
            follower.close()
            assert reading.result(WAIT) == []


@pytest.mark.parametrize("begin", ["enter", "next"])
async def test_a_follower_that_is_closed_before_it_has_subscribed_ends_its_reader(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    opened = client._open_store

    async def open_and_close() -> AsyncStore:
        await follower.aclose()
        return await opened()

    # The feed never says where the queue begins: who waits for that has only the end of the follower to wake it.
    monkeypatch.setattr(event_feed.EventFeed, "_tick", lambda feed, store: None)
    monkeypatch.setattr(client, "_open_store", open_and_close)
    follower = client.follow_events()
    if begin == "enter":
        await in_time(follower.__aenter__())
    assert await in_time(follower.next()) is None
    assert follower._subscription is None or follower._subscription.closed


async def test_closing_a_follower_ends_who_waits_for_it_to_begin(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed.EventFeed, "_tick", lambda feed, store: None)
    follower = client.follow_events()
    entering = asyncio.ensure_future(follower.__aenter__())
    await until(lambda: follower._subscription is not None, "it has subscribed")
    await follower.aclose()
    await in_time(entering)


async def test_followers_have_a_feed_again_after_its_thread_could_not_start(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "queuert-events":
            raise RuntimeError("can't start new thread")
        start(thread)

    first = client.follow_events()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for follower in (first, client.follow_events()):
            with pytest.raises(RuntimeError, match="can't start"):
                await in_time(follower.next())
    async with asyncio.timeout(WAIT), first, client.follow_events() as second:
        chain = await client.start_chain(echo, 1)
        for follower in (first, second):
            assert _summary(await _take(follower, 1)) == [(chain.id, "created")]


@pytest.mark.parametrize("broken", ["notify.subscribe", "state.sync_store", "_event_feed()._has_work"])
@pytest.mark.parametrize("error", [StateUnavailableError("an outage"), SystemExit("an outage")])
async def test_followers_get_the_error_of_which_the_thread_of_the_feed_died_and_the_next_have_another(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    where, name = broken.rsplit(".", 1)
    with monkeypatch.context() as patch:
        patch.setattr(client._event_feed() if where == "_event_feed()" else getattr(client, where), name, refuse)
        for _ in range(2):
            with pytest.raises((StateUnavailableError, RuntimeError), match="an outage"):
                await in_time(client.follow_events().__aenter__())
    async with asyncio.timeout(WAIT), client.follow_events() as events:
        chain = await client.start_chain(echo, 1)
        assert _summary(await _take(events, 1)) == [(chain.id, "created")]


async def test_each_follower_gets_an_error_of_its_own(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(feed: event_feed.EventFeed, store: Store) -> None:
        lost = EventsLostError("retention took them")
        lost.cursor = "here"
        raise lost from LookupError("no such day")

    followers = [client.follow_events() for _ in range(2)]
    for follower in followers:
        await in_time(follower.__aenter__())
    monkeypatch.setattr(event_feed.EventFeed, "_tick", lose)
    for follower in followers:
        with pytest.raises(EventsLostError):
            await in_time(follower.next())
    caught: list[EventsLostError] = []
    for secret, follower in enumerate((*followers, *followers)):
        try:
            try:
                raise ValueError(f"of reader {secret}")
            except ValueError:
                await follower.next()
        except EventsLostError as error:
            caught.append(error)
    assert [str(one.__context__) for one in caught] == [f"of reader {number}" for number in range(4)]
    lengths = set[int]()
    for one in caught:
        shown = str(one), one.cursor, repr(one.__cause__)
        assert shown == ("retention took them", "here", "LookupError('no such day')")
        names = [frame.name for frame in traceback.extract_tb(one.__traceback__)]
        assert names[-1] == "lose"
        lengths.add(len(names))
    assert len(lengths) == 1


async def test_progress_is_an_event(client: AsyncClient) -> None:
    reported = asyncio.Event()
    processors = Processors(JOB_TYPES)

    @processors.handles(echo)
    async def handle(attempt: Attempt[int, int]) -> int:
        for done in range(100):
            attempt.record_progress(done, 100, message="pages")
        await reported.wait()
        return 1

    cursor = await client.event_cursor()
    chain = await client.start_chain(echo, 1)
    async with InProcessWorker(client, processors), asyncio.timeout(WAIT):
        async for event in client.follow(chain, after=cursor):
            if event.kind == EventKind.PROGRESSED:
                assert event.progress is not None
                assert (event.attempt, event.worker is None, event.progress.message) == (1, False, "pages")
                reported.set()
    logged = await client.list_events(chain=chain, kinds=[EventKind.PROGRESSED])
    assert 1 <= len(logged) <= 2
    assert reported.is_set()


def test_by_a_sync_client(state: StateAdapter) -> None:
    with Client(state, JOB_TYPES) as client:
        cursor = client.event_cursor()
        with client.follow_events() as events:
            chain = client.start_chain(echo, 1)
            chain.cancel()
            assert [next(events).kind, next(events).kind] == ["created", "cancelled"]
            assert events.next(timeout=0) is None
        assert next(events, None) is None
        assert [event.kind for event in client.follow(chain, after=cursor)] == ["created", "cancelled"]


def _new(number: int) -> NewChain[int]:
    return NewChain(echo, number)


async def test_a_follower_that_is_closed_within_a_loop_over_all_ends_no_other(client: AsyncClient) -> None:
    """The garbage collector may close one anywhere, also in the thread that reads for all."""
    followers = [client.follow_events() for _ in range(3)]
    async with asyncio.timeout(WAIT), AsyncExitStack() as stack:
        for follower in followers:
            await stack.enter_async_context(follower)
        feed = client._event_feed()
        with feed.lock:
            for subscription in feed._subscriptions:
                if subscription is not followers[0]._subscription:
                    subscription.close()
        chain = await client.start_chain(echo, 1)
        assert _summary(await _take(followers[0], 1)) == [(chain.id, "created")]
    with feed.lock:
        assert all(one.closed for one in feed._subscriptions)
