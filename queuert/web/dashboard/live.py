"""Tells open pages that something has happened: Server-Sent Events without any data of jobs.

One task of the process looks once in a second whether the event log has a newer event, however many pages are open. It
follows no events: at twenty thousand jobs a second that would cost more than the pages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from functools import partial

import anyio
from sse_starlette import ServerSentEvent
from starlette.exceptions import HTTPException
from starlette.responses import Response

from queuert.client import AsyncClient
from queuert.errors import ChainNotFoundError, QueuertError
from queuert.jobs import ChainState
from queuert.web.access import Access, Action
from queuert.web.problems import Problem
from queuert.web.streams import CHECK_ACCESS, RETRY, Stream
from queuert.web.waiting import WaitingRequests

_log = logging.getLogger("queuert.web")

TICK = 1.0
"""Seconds between two looks at the event log."""

MOST_STREAMS = 500
"""The most streams of a process."""

MOST_STREAMS_OF_ONE = 100
"""The most streams of one principal, where ``access`` names it: its open pages."""

_SHORT_READ = 5.0
"""Seconds for which one read of a chain's state is repeated while the store is not available."""


class Pulse:
    """Tells the streams of one database when the event log has grown. Its task runs while there are streams."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._streams = 0
        self._task: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self.grown = 0
        """How often the log was found to have grown."""

    def join(self, newest: tuple[int, int] | None) -> None:
        """Begin to look, if nobody did: for what comes after this event, which is no news to a page that opens."""
        self._streams += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look(newest))

    def leave(self) -> None:
        """Stop looking, if nobody is left."""
        self._streams -= 1
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    async def next(self, seen: int) -> None:
        """Wait until the log has grown more often than this."""
        while self.grown == seen:
            await self._grown.wait()

    async def newest(self) -> tuple[int, int] | None:
        """Return the number of the newest event.

        Raises:
            CapabilityMissingError: the store has no event log.
        """
        page = await self._client.list_events(limit=1)
        return (page.items[0].tx, page.items[0].seq) if page.items else None

    async def _look(self, last: tuple[int, int] | None) -> None:
        while True:
            try:
                newest = await self.newest()
            except Exception as error:
                trace = None if isinstance(error, QueuertError) else error
                _log.warning("the dashboard could not look at the event log: %s", error, exc_info=trace)
                newest = last
            if newest != last:
                last, waiting = newest, self._grown
                self.grown += 1
                self._grown = asyncio.Event()
                waiting.set()
            await asyncio.sleep(TICK)


class LiveStreams:
    """The streams of a dashboard."""

    def __init__(self) -> None:
        self.waiting = WaitingRequests(MOST_STREAMS, MOST_STREAMS_OF_ONE)
        self._pulses: dict[int, Pulse] = {}
        self._stopping: set[asyncio.Event] = set()
        self._stopped = False

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        for event in tuple(self._stopping):
            event.set()

    async def open(
        self, client: AsyncClient, chain_id: str | None, principal: str, authorize: Callable[[], Awaitable[Access]]
    ) -> Response:
        """Return a stream that says when something has happened, to one chain or to any.

        Raises:
            CapabilityMissingError: the store has no event log: pages read themselves again now and then.
            Problem: 503, too many streams are open, of all or of this principal, or the server stops.
        """
        pulse = self._pulses.setdefault(id(client), Pulse(client))
        newest = await pulse.newest()
        if self._stopped:
            raise Problem(503, "stopping", "the server stops: connect again")
        waiting = ExitStack()
        waiting.enter_context(self.waiting.one(principal))
        shutdown = anyio.Event()
        return Stream(self._changes(pulse, newest, client, chain_id, authorize, shutdown), waiting, shutdown)

    async def _changes(
        self,
        pulse: Pulse,
        newest: tuple[int, int] | None,
        client: AsyncClient,
        chain_id: str | None,
        authorize: Callable[[], Awaitable[Access]],
        shutdown: anyio.Event,
    ) -> AsyncIterator[ServerSentEvent]:
        if self._stopped:
            return
        stopping = asyncio.Event()
        self._stopping.add(stopping)
        pulse.join(newest)
        check_at, at = time.monotonic() + CHECK_ACCESS, pulse.grown
        try:
            seen = None if chain_id is None else await _state(client, chain_id)
            yield ServerSentEvent("{}", event="ready", retry=RETRY, sep="\n")
            while not (stopping.is_set() or shutdown.is_set()):
                grown = await _first_of(partial(pulse.next, at), stopping.wait, shutdown.wait)
                at = pulse.grown
                if time.monotonic() >= check_at:
                    check_at = time.monotonic() + CHECK_ACCESS
                    if not await _still_allowed(authorize):
                        return
                if not grown:
                    continue
                if chain_id is not None:
                    state = await _state(client, chain_id)
                    if state == seen:
                        continue
                    seen = state
                yield ServerSentEvent("{}", event="changed", sep="\n")
        finally:
            self._stopping.discard(stopping)
            pulse.leave()


async def _first_of(first: Callable[[], Awaitable[object]], *others: Callable[[], Awaitable[object]]) -> bool:
    """Wait for one of them, at most as long as between two checks; return whether it was the first."""
    tasks = [asyncio.ensure_future(one()) for one in (first, *others)]
    try:
        await asyncio.wait(tasks, timeout=CHECK_ACCESS, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _state(client: AsyncClient, chain_id: str) -> ChainState | None:
    """Where a chain is; None if it does not exist, or cannot be read."""
    with suppress(ChainNotFoundError, QueuertError):
        async with aclosing(client.watch_chain(chain_id, timeout=_SHORT_READ)) as states:
            return await anext(states)
    return None


async def _still_allowed(authorize: Callable[[], Awaitable[Access]]) -> bool:
    try:
        return (await authorize()).allows(Action.READ)
    except (HTTPException, Problem):
        return False
