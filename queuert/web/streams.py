"""Streams of events for browsers and programs: Server-Sent Events, from the event log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queuert.client.async_following import BEGINNING, AsyncEventFollower
from queuert.documents import ChainStateDocument, Document, EventDocument
from queuert.errors import ChainNotFoundError, EventsLostError, QueuertError
from queuert.event_log import JobEvent
from queuert.jobs import ChainState, ChainStatus
from queuert.observability.escaping import escape_json
from queuert.web.access import Action
from queuert.web.answers import Gap
from queuert.web.bodies import EventsQuery
from queuert.web.problems import Problem

if TYPE_CHECKING:
    from queuert.web.api import Call

_log = logging.getLogger("queuert.web")


def _is_no_frame(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


# At DEBUG it writes each frame, and with it the errors and messages of jobs.
logging.getLogger("sse_starlette.sse").addFilter(_is_no_frame)

RETRY = 3_000
"""Milliseconds after which a browser connects again."""

PING = 15.0
"""Seconds between two comments that keep the connection open."""

SEND_TIMEOUT = 15.0
"""Seconds that a client may take to receive what was sent. It then has to connect again."""

CHECK_ACCESS = 60.0
"""Seconds between two checks that the request is still allowed."""

REST_TIMEOUT = 5.0
"""Seconds for which the rest of a closed chain is awaited before the answer begins."""

GRACE = 0.4
"""Seconds that streams have to end by themselves when the server stops; it is noticed within half a second."""

MEDIA_TYPE = "text/event-stream"


Follow: TypeAlias = Callable[[str | None], AsyncEventFollower]
"""Follows what a request asks for, after a cursor."""


async def all_events(call: Call) -> Response:
    """The events of all chains, from now on or after an event."""
    query: EventsQuery = call.query

    def follow(after: str | None) -> AsyncEventFollower:
        return call.client.follow_events(job_types=query.type or None, kinds=query.kind or None, after=after)

    after, frames = await _begin(call)
    return _stream(call, follow, follow(after), [_position_frame(after), *frames])


async def chain_events(call: Call) -> Response:
    """The state of a chain, then its events until it is closed; after an event only what follows, or 204."""

    def follow(after: str | None) -> AsyncEventFollower:
        return call.client.follow(call.id, after=after)

    # The state is read after the cursor was: what changes it is shown, perhaps twice, and never left out.
    after, frames = await _begin(call)
    state = await call.state()
    closed = state.status is not ChainStatus.OPEN
    if call.after is None or frames:
        frames.append(_state_frame(state, call, after))
        return _stream(call, follow, None if closed else follow(after), [_position_frame(after), *frames])
    follower = follow(after)
    if closed:
        try:
            event = await follower.next(REST_TIMEOUT)
        except EventsLostError as error:
            event, follower = None, follow(error.cursor)
            frames.append(_gap_frame(error))
        if event is not None:
            frames.append(_event_frame(event, call))
        elif follower.ended:
            return Response(status_code=204)
    return _stream(call, follow, follower, [_position_frame(after), *frames])


async def _begin(call: Call) -> tuple[str, list[ServerSentEvent]]:
    """Check the cursor of a request before it is answered. Return where to begin, and a gap that was found.

    Raises:
        InvalidCursorError: it is not a cursor of the event log.
        CapabilityMissingError: the store has no event log.
    """
    if call.after is None or call.after == BEGINNING:
        now = await call.client.event_cursor()
        return call.after or now, []
    try:
        await call.client.list_events(cursor=call.after, limit=1, oldest_first=True)
    except EventsLostError as error:
        return error.cursor or BEGINNING, [_gap_frame(error)]
    return call.after, []


def _stream(call: Call, follow: Follow, follower: AsyncEventFollower | None, first: list[ServerSentEvent]) -> Response:
    waiting = ExitStack()
    waiting.enter_context(call.app.waiting.one(call.access.principal))
    shutdown = anyio.Event()
    return Stream(_frames(call, follow, follower, first, shutdown), waiting, shutdown)


class Stream(EventSourceResponse):
    """A stream, which is counted as a request that waits. ``shutdown`` is set when the server stops."""

    def __init__(self, frames: AsyncIterator[ServerSentEvent], waiting: ExitStack, shutdown: anyio.Event) -> None:
        super().__init__(
            frames,
            headers={"Cache-Control": "no-cache, no-transform", "X-Content-Type-Options": "nosniff"},
            ping=PING,
            sep="\n",
            ping_message_factory=lambda: ServerSentEvent(comment="", sep="\n"),
            send_timeout=SEND_TIMEOUT,
            # Set when uvicorn stops, also if the application is mounted in another one.
            shutdown_event=shutdown,
            shutdown_grace_period=GRACE,
        )
        self._waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _log.info("a stream was closed: its client did not receive for %g seconds", SEND_TIMEOUT)
        finally:
            self._waiting.close()


async def _frames(
    call: Call,
    follow: Follow,
    follower: AsyncEventFollower | None,
    first: list[ServerSentEvent],
    shutdown: anyio.Event,
) -> AsyncIterator[ServerSentEvent]:
    """What is sent: where to continue, what was found at the beginning, and each event."""
    for frame in first:
        yield frame
    stopping = asyncio.ensure_future(_first(call.app.stopping, shutdown.wait))
    check_at, position = time.monotonic() + CHECK_ACCESS, None
    try:
        while follower is not None and not follower.ended and not stopping.done():
            try:
                event = await _next(follower, stopping)
                state = await _last_state(event, follower, call)
            except ChainNotFoundError:
                return  # It was deleted.
            except EventsLostError as error:
                yield _gap_frame(error)
                await follower.aclose()
                follower = follow(error.cursor)
                continue
            except QueuertError as error:
                _log.warning("a stream has ended: %s", error)
                return
            if event is not None:
                yield _event_frame(event, call)
                # Events of a page that was read are sent without a pause: in this turn of the event loop the server
                # notices that the connection is lost, and other requests go on.
                await asyncio.sleep(0)
            elif state is not None:
                yield _state_frame(state, call, follower.cursor)
            elif follower.cursor not in (None, position):
                # Others than those that the request asks for have passed: it need not read them again.
                yield _position_frame(follower.cursor)
            position = follower.cursor
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + CHECK_ACCESS
                if not await _still_allowed(call):
                    return
    finally:
        stopping.cancel()
        if follower is not None:
            await follower.aclose()


async def _first(*conditions: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait until one of them holds."""
    tasks = [asyncio.ensure_future(one()) for one in conditions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _next(follower: AsyncEventFollower, stopping: asyncio.Future[None]) -> JobEvent | None:
    """Return the next event; None if there is none for a while, or the application stops."""
    event = await follower.next(0.0)
    if event is not None or follower.ended:
        return event
    waiting = asyncio.ensure_future(follower.next(PING))
    try:
        either: list[asyncio.Future[Any]] = [waiting, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _last_state(event: JobEvent | None, follower: AsyncEventFollower, call: Call) -> ChainState | None:
    """Return where the chain is, if it has closed and its job type does not log that."""
    return await call.state() if event is None and follower.ended else None


async def _still_allowed(call: Call) -> bool:
    """Whether the request would still be allowed, with all that the stream shows."""
    try:
        access = await call.authorize()
    except (HTTPException, Problem):
        return False
    return access.allows(Action.READ) and (not call.payloads or access.allows(Action.READ_PAYLOADS))


def _position_frame(cursor: str | None) -> ServerSentEvent:
    """No event: says from where the client continues when it connects again."""
    return ServerSentEvent(id=None if cursor == BEGINNING else cursor, retry=RETRY, sep="\n")


def _event_frame(event: JobEvent, call: Call) -> ServerSentEvent:
    return _frame(event.kind, EventDocument.of(event, payloads=call.payloads), event.cursor)


def _state_frame(state: ChainState, call: Call, cursor: str | None) -> ServerSentEvent:
    return _frame("state", ChainStateDocument.of(state, payloads=call.payloads), cursor)


def _gap_frame(error: EventsLostError) -> ServerSentEvent:
    return _frame("gap", Gap(reason=str(error)), error.cursor)


def _frame(kind: str, data: Document, cursor: str | None) -> ServerSentEvent:
    # Some clients take a line end of Unicode in a text for the end of the frame's line.
    text = escape_json(data.as_json())
    return ServerSentEvent(text, event=kind, id=None if cursor == BEGINNING else cursor, sep="\n")
