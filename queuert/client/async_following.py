"""Follows the event log, in an async client. ``sync_following.py`` is generated from this module."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from queuert.client.arguments import decoded_event
from queuert.client.event_feed import POLL, EventFeed, EventSubscription, Key
from queuert.client.wakeup import AsyncWakeup
from queuert.errors import ChainNotFoundError, InvalidCursorError, StateUnavailableError
from queuert.event_log import EventFilter, JobEvent
from queuert.job_types import JobTypes
from queuert.observability.adapter import Observers
from queuert.observability.events import LoopRecovered, StoreCallFailed
from queuert.state.async_store import AsyncStore
from queuert.state.paging import MAX_PAGE, PageRequest, Position

_AFTER = "after must be the cursor of an event, of a follower or of event_cursor()"

BEGINNING = "beginning"
"""The ``after`` of a follower that begins with the oldest event of the log."""

_LONG_PAUSE = 3600.0


class AsyncFollowedClient(Protocol):
    """What a follower needs of its client."""

    observers: Observers
    job_types: JobTypes

    async def _open_store(self) -> AsyncStore: ...

    def _event_feed(self) -> EventFeed: ...


class AsyncEventFollower:
    """Events of the log in order, as they are committed: each once, and none is skipped. An asynchronous iterator.

    ``client.follow_events()`` and ``client.follow()`` return it. Followers of one client share one reader of the log,
    which looks every second, and at once when a notification says that something happened. An event is shown when all
    transactions that are older than its own have ended.

    It subscribes when it is entered as a context manager, or when the first event is asked for; leaving the context
    closes it. A call that is cancelled loses no event. It is for one task or thread at a time; another one may close
    it, and a call that waits then ends as at the end of the events.

    Example::

        async with client.follow_events(kinds=["failed"], after=cursor) as events:
            async for event in events:
                save(event.cursor)
    """

    def __init__(self, client: AsyncFollowedClient, filter: EventFilter, after: str | None) -> None:
        self._client = client
        self._filter = filter
        self._after = after
        self._position = None if after == BEGINNING else after
        self._behind = after is not None
        """Whether the events after the position are to be read from the store, rather than taken from the queue."""
        self._key: Key | None = None
        """The key of the position, up to which no event is returned any more; None if it is not known yet."""
        self._begun = False
        """Whether all was read that is before the queue."""
        self._has_returned = False
        """Whether an event was returned."""
        self._ready: deque[JobEvent] = deque()
        self._subscription: EventSubscription | None = None
        self._wakeup: AsyncWakeup | None = None
        self._ended = False
        self._failures = 0
        """Reads that failed in a row."""

    @property
    def cursor(self) -> str | None:
        """Where to continue: pass it as ``after`` to get the events after those that were returned.

        It moves on while events pass that the filter does not match, as often as :meth:`next` is called. None if there
        is no such position yet.
        """
        return self._position

    @property
    def ended(self) -> bool:
        """Whether no event will follow: the followed chain has ended, or the follower was closed."""
        return self._ended

    async def __aenter__(self) -> Self:
        subscription, wakeup = await self._subscribe()
        while subscription.cursor is None and not self._ended:
            subscription.check_ended()
            await wakeup.wait(_LONG_PAUSE)
        if not self._behind:
            self._begin(subscription)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. Idempotent. A call of :meth:`next` that waits returns None."""
        self._ended = True
        if self._subscription is not None:
            self._subscription.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout: float | None = None) -> JobEvent | None:
        """Return the next event; None if there was none within ``timeout`` seconds, or if ``ended`` is set.

        Raises:
            ChainNotFoundError: the followed chain does not exist.
            InvalidCursorError: ``after`` is not a cursor of the event log.
            EventsLostError: events after the cursor were deleted, or lost by a failover. The error says how to go on.
            ClosedError: the client was closed.
        """
        deadline = time.monotonic() + (_LONG_PAUSE if timeout is None else timeout)
        while not self._ready and not self._ended:
            subscription, wakeup = await self._subscribe()
            if subscription.cursor is None:
                subscription.check_ended()
            elif self._behind:
                await self._read_page()
                continue
            elif self._take(subscription):
                continue
            pause = deadline - time.monotonic()
            if pause <= 0 and timeout is not None:
                return None
            await wakeup.wait(max(0.0, pause) if timeout is not None else _LONG_PAUSE)
        if not self._ready:
            return None
        event = self._ready.popleft()
        self._position, self._key, self._has_returned = event.cursor, (event.tx, event.seq), True
        if self._filter.chain_id is not None and event.closes_chain:
            await self.aclose()
        return decoded_event(self._client.job_types, event)

    async def _subscribe(self) -> tuple[EventSubscription, AsyncWakeup]:
        """Subscribe, unless it has, before anything is read: what is committed from now on comes into the queue."""
        if self._subscription is None or self._wakeup is None:
            await self._client._open_store()
            self._wakeup = AsyncWakeup()
            self._subscription = self._client._event_feed().subscribe(self._filter, self._wakeup.set)
            if self._ended:
                # It was closed meanwhile, when there was no subscription yet.
                self._subscription.close()
        return self._subscription, self._wakeup

    def _begin(self, subscription: EventSubscription) -> None:
        """Move to where the queue begins: all that is before it was read, or is not asked for."""
        if not self._begun and subscription.cursor is not None:
            self._begun = True
            self._move(subscription.cursor, Position.event_key(subscription.cursor))

    def _move(self, cursor: str, key: Key | None) -> None:
        """Move the position on; never back, as the feed may be behind what this follower has read by itself."""
        if self._position is None or (self._key is not None and key is not None and self._key < key):
            self._position, self._key = cursor, key

    async def _read_page(self) -> None:
        """Read the next page after the position from the store; the last one was written before the queue began."""
        store = await self._client._open_store()
        try:
            page = await store.list_events(self._filter, PageRequest(MAX_PAGE, self._position, oldest_first=True))
        except InvalidCursorError as error:
            raise InvalidCursorError(error.cursor, _AFTER) from None
        except StateUnavailableError as error:
            self._failures += 1
            failed = StoreCallFailed(worker="client", operation="follow", error=str(error), failures=self._failures)
            self._client.observers.emit(failed)
            assert self._wakeup is not None
            await self._wakeup.wait(POLL)
            return
        if self._failures:
            self._client.observers.emit(LoopRecovered(worker="client", loop="follow", failures=self._failures))
            self._failures = 0
        if self._key is None and self._position is not None:
            # The queue may have events that are before ``after``: the feed reads the log up to a second later.
            self._key = Position.event_key(self._position)
        self._add(page.items)
        self._behind = page.next_cursor is not None
        if not page.items and page.next_cursor is not None:
            self._position, self._key = page.next_cursor, Position.event_key(page.next_cursor)

    def _take(self, subscription: EventSubscription) -> bool:
        """Take what is in the queue. Return whether there is something to do."""
        self._begin(subscription)
        if subscription.take_overflow():
            self._behind = True
            return True
        taken = subscription.take()
        self._add(taken.events)
        if taken.passed is not None:
            key, cursor = taken.passed
            self._move(cursor, key)
        if self._ready or not subscription.check_ended():
            return bool(self._ready)
        self._ended = True
        if subscription.chain_missing and not self._has_returned and self._after in (None, BEGINNING):
            raise ChainNotFoundError(self._filter.chain_id or "")
        return True

    def _add(self, events: Iterable[JobEvent]) -> None:
        """Add events that are after the position. Those of the queue may have been read from the store as well."""
        self._ready.extend(one for one in events if self._key is None or (one.tx, one.seq) > self._key)
