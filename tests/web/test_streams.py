"""Streams of events: nothing is lost or repeated, wherever a connection is cut."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn

from queuert import Attempt, NewChain
from queuert.errors import ConfigurationError
from queuert.web import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access, Action, StreamTokens, WebApp, streams
from queuert.web.problems import Problem
from tests.support.harness import Harness
from tests.support.job_types import WATCHED, echo, number, text
from tests.support.waiting import WAIT, until
from tests.web.applications import Http, app_of, problem

SECRET = "secret-" + "0" * 32

_ALL_EVENTS: dict[str, Any] = {
    "type": "http", "method": "GET", "path": "/events", "raw_path": b"/events", "query_string": b"after=beginning",
    "headers": [], "root_path": "", "scheme": "http", "server": ("a", 80),
}  # fmt: skip
"""The request of a server for the stream of all events, from the beginning."""


@dataclass
class Frame:
    """A frame of a stream, as a browser reads it."""

    event: str
    data: Any
    id: str | None


class Server(uvicorn.Server):
    """A server that leaves the signals of the test alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


@asynccontextmanager
async def served(app: WebApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application on a real server, which sends what a stream has as soon as it has it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        host, port = listening.getsockname()
        try:
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=WAIT) as web:
                yield web
        finally:
            app.stop()
            server.should_exit = True
            await running


def frames_of(stream: bytes) -> tuple[list[Frame], str | None]:
    """The whole frames of a stream that may be cut anywhere, and the last event id, by the rules of browsers."""
    found: list[Frame] = []
    last: str | None = None
    *blocks, _ = stream.decode(errors="replace").split("\n\n")
    for block in blocks:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        last = fields.get("id", last)
        if "data" in fields:
            found.append(Frame(fields.get("event", "message"), json.loads(fields["data"]), last))
    return found, last


async def read_until(web: httpx.AsyncClient, path: str, enough: Any, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a stream, up to when they are enough; or to its end."""
    data = b""
    async with asyncio.timeout(WAIT), web.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for chunk in response.aiter_raw():
            data += chunk
            if enough(data):
                break
    return data


async def read_around(web: httpx.AsyncClient, act: Callable[[], Awaitable[object]]) -> bytes:
    """The bytes of the stream of the chain ``mine`` to its end; what ends it is done once the stream has its state."""
    async with asyncio.timeout(WAIT), web.stream("GET", "/chains/mine/events") as response:
        chunks, data = response.aiter_raw(), b""
        while b"event: state" not in data:
            data += await anext(chunks)
        await act()
        return data + b"".join([chunk async for chunk in chunks])


def having(count: int) -> Any:
    """Enough are so many frames."""
    return lambda data: len(frames_of(data)[0]) >= count


async def all_events(harness: Harness) -> list[tuple[str, str]]:
    page = await harness.client.list_events(oldest_first=True, limit=1_000)
    return [(event.job_id, event.kind) for event in page]


def shown(frames: list[Frame]) -> list[tuple[str, str]]:
    return [(frame.data["job_id"], frame.event) for frame in frames]


async def test_a_chain_is_streamed_to_its_end_and_then_not_again(harness: Harness) -> None:
    harness.handles(number, echo)
    chain = await harness.client.start_chain(number, 1)
    path = f"/chains/{chain.id}/events"
    async with served(app_of(harness.client)) as web:
        streaming = asyncio.create_task(read_until(web, path, lambda data: False))
        async with harness.worker():
            frames, last = frames_of(await streaming)
        assert frames[0].event == "state"
        assert [frame.event for frame in frames[1:]][-1] == "completed"
        assert frames[-1].data["closes_chain"] is True
        assert (await web.get(path, headers={"Last-Event-ID": last or ""})).status_code == 204
        closed, last = frames_of(await read_until(web, path, lambda data: False))
        assert [(frame.event, frame.data["status"]) for frame in closed] == [("state", "completed")]
        assert (await web.get(path, headers={"Last-Event-ID": last or ""})).status_code == 204
        again, _ = frames_of(await read_until(web, f"{path}?after=beginning", lambda data: False))
        assert [frame.event for frame in again] == ["created", "started", "completed"]


async def test_no_log_has_what_is_streamed(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    await harness.client.start_chain(number, 1, id="mine")
    await harness.client.cancel_chain("mine", reason="canary")
    with caplog.at_level(logging.DEBUG):
        async with served(app_of(harness.client)) as web:
            data = await read_until(web, "/chains/mine/events", having(1))
    assert b"canary" in data
    assert "canary" not in caplog.text


async def test_a_stream_continues_wherever_it_was_cut(harness: Harness) -> None:
    for one in range(4):
        await harness.client.start_chain(number, one, id=f"chain-{one}")
        await harness.client.cancel_chain(f"chain-{one}", reason="ä \u2028 \r\n data: x")
    expected = await all_events(harness)
    async with served(app_of(harness.client)) as web:
        whole = await read_until(web, "/events?after=beginning", having(len(expected)))
        assert shown(frames_of(whole)[0]) == expected
        rest: dict[str | None, list[tuple[str, str]]] = {}
        for cut in range(len(whole) + 1):
            got, last = frames_of(whole[:cut])
            if last not in rest:
                left = len(expected) - len(got)
                headers = {} if last is None else {"Last-Event-ID": last}
                path = "/events?after=beginning"
                data = await read_until(web, path, having(left) if left else lambda data: data, headers)
                rest[last] = shown(frames_of(data)[0])
            assert shown(got) + rest[last] == expected
        assert len(rest) == len(expected) + 1


async def test_each_frame_is_read_alike_whatever_a_client_takes_for_the_end_of_a_line(harness: Harness) -> None:
    reason = "a \u2028 b \u2029 c \u0085 d \x1c e \u202e f ä 日"
    await harness.client.start_chain(number, 1, id="mine")
    await harness.client.cancel_chain("mine", reason=reason)
    async with served(app_of(harness.client)) as web:
        state = await read_until(web, "/chains/mine/events", having(1))
        events = await read_until(web, "/events?after=beginning", having(2))
    for data in (state, events):
        assert data.decode().splitlines() == data.decode().removesuffix("\n").split("\n")
    assert frames_of(events)[0][-1].data["error"]["message"] == reason


async def test_a_stream_without_events_says_where_to_continue(harness: Harness) -> None:
    async with served(app_of(harness.client)) as web:
        nothing = await read_until(web, "/events", lambda data: b"\n\n" in data)
        frames, last = frames_of(nothing)
        assert (frames, b"retry: 3000" in nothing) == ([], True)
        assert last is not None
        await harness.client.start_chain(number, 1, id="meanwhile")
        data = await read_until(web, "/events", having(1), {"Last-Event-ID": last})
        assert shown(frames_of(data)[0]) == [("meanwhile", "created")]


async def test_what_a_filter_leaves_out_is_passed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING", 0.05)
    cursor = await harness.client.event_cursor()
    async with served(app_of(harness.client)) as web:
        await harness.client.start_chain(number, 1)
        await harness.client.start_chain(text, "wanted", id="wanted")
        [last] = (await harness.client.list_events(limit=1)).items
        path = f"/events?type=text&kind=created&after={cursor}"
        moved = lambda data: frames_of(data)[1] not in (None, last.cursor, cursor)  # noqa: E731
        reading = asyncio.create_task(read_until(web, path, moved))
        while not reading.done():  # Only what comes after the stream has begun to follow is passed.
            await harness.client.start_chain(number, 1)
        assert shown(frames_of(await reading)[0]) == [("wanted", "created")]


@pytest.mark.parametrize("beginning", [False, True])
async def test_what_a_filter_leaves_out_is_passed_before_anything_has_matched(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, beginning: bool
) -> None:
    """A browser that connects to a quiet stream again continues near the end of the log."""
    monkeypatch.setattr(streams, "PING", 0.05)
    await harness.client.start_chain(number, 1)
    after = "beginning" if beginning else await harness.client.event_cursor()
    later: set[str | None] = set()
    async with served(app_of(harness.client)) as web:
        path = f"/events?kind=failed&after={after}"
        reading = asyncio.create_task(read_until(web, path, lambda data: frames_of(data)[1] in later))
        while not reading.done():
            await harness.client.start_chain(number, 1)
            later.add((await harness.client.list_events(limit=1)).items[0].cursor)
        assert frames_of(await reading)[0] == []


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
async def test_a_gap_is_reported(harness: Harness, dsn: str) -> None:
    await harness.client.start_chain(number, 1, id="lost")
    [event] = (await harness.client.list_events(oldest_first=True)).items
    await harness.client.start_chain(number, 1, id="mine")
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("delete from queuert.job_event where job_id = 'mine'")
        sql.execute("update queuert.event_log set dropped_tx = %s::text::xid8", [str(event.tx + 1)])
    async with served(app_of(harness.client)) as web:
        await harness.client.cancel_chain("mine")
        data = await read_until(web, "/events", having(2), {"Last-Event-ID": event.cursor})
        gap, found = frames_of(data)[0]
        assert gap.event == "gap"
        assert "retention took events" in gap.data["reason"]
        assert (found.event, found.data["job_id"]) == ("cancelled", "mine")
        data = await read_until(web, "/chains/mine/events", lambda data: False, {"Last-Event-ID": event.cursor})
        assert [frame.event for frame in frames_of(data)[0]] == ["gap", "state"]


async def test_what_a_stream_begins_with_is_checked(harness: Harness, http: Http) -> None:
    web = http(app_of(harness.client))
    assert problem(await web.get("/events?after=nonsense")) == (400, "invalid-cursor")
    assert problem(await web.get("/events", headers={"Last-Event-ID": "nonsense"})) == (400, "invalid-cursor")
    assert problem(await web.get("/chains/missing/events")) == (404, "chain-not-found")


async def test_errors_are_shown_with_payloads_only(harness: Harness) -> None:
    await harness.client.start_chain(number, 1, id="mine")
    await harness.client.cancel_chain("mine", reason="a secret")
    for access, visible in ((FULL_ACCESS, True), (READ_ACCESS, False)):
        async with served(app_of(harness.client, access)) as web:
            data = await read_until(web, "/events?after=beginning", having(2))
            assert (b"a secret" in data) is visible
            state = await read_until(web, "/chains/mine/events", having(1))
            assert (b"a secret" in state) is visible


async def test_progress_is_streamed_its_message_with_payloads_only(harness: Harness) -> None:
    go_on = asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        attempt.record_progress(1, 4, message="a secret")
        await go_on.wait()
        return 1

    harness.handles(number, handler, lease=WATCHED)
    await harness.client.start_chain(number, 1, id="mine")
    progressed = lambda data: any(frame.event == "progressed" for frame in frames_of(data)[0])  # noqa: E731
    async with harness.worker():
        for access, visible in ((FULL_ACCESS, True), (READ_ACCESS, False)):
            async with served(app_of(harness.client, access)) as web:
                data = await read_until(web, "/chains/mine/events?after=beginning", progressed)
                [frame] = [frame for frame in frames_of(data)[0] if frame.event == "progressed"]
                assert frame.data["progress"]["fraction"] == 0.25
                assert (b"a secret" in data) is visible
        go_on.set()
        await harness.client.wait([await harness.client.get_chain("mine")], timeout=WAIT)


async def test_a_chain_without_events_is_shown_when_it_has_closed(harness: Harness) -> None:
    await harness.client.set_event_level("off", job_types=["number"])
    chain = await harness.client.start_chain(number, 1, id="mine")
    async with served(app_of(harness.client)) as web:
        seen = await read_around(web, chain.cancel)
    statuses = [(frame.event, frame.data["status"]) for frame in frames_of(seen)[0]]
    assert statuses == [("state", "open"), ("state", "cancelled")]


async def test_a_stream_ends_when_the_client_of_the_queue_is_closed(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    client = harness.new_client()
    async with served(app_of(client)) as web, asyncio.timeout(WAIT), web.stream("GET", "/events") as response:
        chunks = response.aiter_raw()
        assert b"retry" in await anext(chunks)
        await client.aclose()
        assert [chunk async for chunk in chunks] == []
    assert "a stream has ended" in caplog.text


async def test_headers_keep_proxies_from_buffering(harness: Harness) -> None:
    async with served(app_of(harness.client)) as web, web.stream("GET", "/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"


async def test_streams_are_limited_and_end_with_their_clients(harness: Harness) -> None:
    app = app_of(harness.client, max_waiting=1)
    async with served(app) as web:
        async with web.stream("GET", "/events") as response:
            assert response.status_code == 200
            assert problem(await web.get("/events")) == (503, "too-many-waiting")
            assert (await web.head("/events")).status_code == 503
        await until(lambda: not app.open_waits, "the stream has ended")
        assert (await web.head("/events")).status_code == 200
        assert app.open_waits == 0


async def test_a_stream_ends_when_its_access_does(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING", 0.02)
    monkeypatch.setattr(streams, "CHECK_ACCESS", 0.02)
    access = READ_ACCESS
    app = WebApp(harness.client, access=lambda request: access)
    async with served(app) as web, asyncio.timeout(WAIT), web.stream("GET", "/events") as response:
        access = NO_ACCESS
        assert b"retry" in await response.aread()


async def test_a_stream_ends_when_it_may_not_show_payloads_any_more(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client connects again, and gets a stream without them."""
    monkeypatch.setattr(streams, "PING", 0.02)
    monkeypatch.setattr(streams, "CHECK_ACCESS", 0.02)
    access = Access([Action.READ, Action.READ_PAYLOADS])
    app = WebApp(harness.client, access=lambda request: access)
    async with served(app) as web, asyncio.timeout(WAIT), web.stream("GET", "/events") as response:
        access = READ_ACCESS
        assert b"retry" in await response.aread()


@pytest.mark.parametrize("level", ["all", "off"])
async def test_a_stream_ends_when_its_chain_is_deleted(
    harness: Harness, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    await harness.client.set_event_level(level, job_types=["number"])
    chain = await harness.client.start_chain(number, 1, id="mine")
    async with served(app_of(harness.client)) as web:
        await read_around(web, lambda: harness.client.delete_chain(chain))
    assert "Exception" not in caplog.text


async def test_a_slow_client_is_closed_and_others_are_not(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "SEND_TIMEOUT", 0.2)
    app = app_of(harness.client)
    for one in range(5):
        await harness.client.start_chain(number, one)
    caplog.set_level("INFO", "queuert.web")
    blocked = asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await blocked.wait()

    async def receive() -> Any:
        await blocked.wait()

    async with asyncio.timeout(WAIT):
        await app(dict(_ALL_EVENTS), receive, send)
    assert "a stream was closed: its client did not receive" in caplog.text
    assert app.open_waits == 0


async def test_a_stream_ends_when_its_reader_has_gone_in_the_middle_of_a_page(harness: Harness) -> None:
    """A server sees a lost connection in a turn of the event loop: what is sent before goes nowhere, and is logged."""
    await harness.client.start_chains([NewChain(number, one) for one in range(300)])
    gone, late = asyncio.Event(), 0

    async def send(message: Any) -> None:
        nonlocal late
        if gone.is_set():
            late += 1
        elif b"event: created" in message.get("body", b""):
            gone.set()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    app = app_of(harness.client)
    async with asyncio.timeout(WAIT):
        await app(dict(_ALL_EVENTS), receive, send)
    # The task of the response that waits for the end of the connection is a few turns behind the server.
    assert late < 10
    assert app.open_waits == 0


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_allows_to_follow_one_chain_and_nothing_else(harness: Harness, http: Http) -> None:
    tokens = StreamTokens(SECRET)
    await harness.client.start_chain(number, 1, id="mine")
    await harness.client.cancel_chain("mine", reason="a secret")
    await harness.client.start_chain(number, 1, id="other")
    web = http(WebApp(harness.client, stream_tokens=tokens))
    token, telling = tokens.sign("mine"), tokens.sign("mine", payloads=True)
    followed = await web.get("/chains/mine/events", params={"token": token})
    assert [frame.event for frame in frames_of(followed.content)[0]] == ["state"]
    assert "a secret" not in followed.text
    assert "a secret" in (await web.get("/chains/mine/events", params={"token": telling})).text
    refused = (403, "invalid-token")
    assert problem(await web.get("/chains/other/events", params={"token": token})) == refused
    for wrong in ("", "x", token[:-2], token + "x", token.replace(".", ""), StreamTokens("x" * 32).sign("mine")):
        assert problem(await web.get("/chains/mine/events", params={"token": wrong})) == refused, wrong
    assert problem(await web.get("/chains/mine", params={"token": token})) == (403, "closed")
    assert problem(await web.get("/events", params={"token": token})) == (403, "closed")
    assert problem(await web.get("/chains/mine/events")) == (403, "closed")
    unsigned = http(WebApp(harness.client))
    assert problem(await unsigned.get("/chains/mine/events", params={"token": token})) == (403, "closed")


async def test_a_token_expires_also_while_its_stream_is_open(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING", 0.02)
    monkeypatch.setattr(streams, "CHECK_ACCESS", 0.02)
    tokens = StreamTokens(SECRET)
    await harness.client.start_chain(number, 1, id="mine")
    token = tokens.sign("mine", expires_in=2)
    async with served(WebApp(harness.client, stream_tokens=tokens)) as web, asyncio.timeout(WAIT):
        ended = await web.get("/chains/mine/events", params={"token": token})
        assert ended.status_code == 200
        assert problem(await web.get("/chains/mine/events", params={"token": token})) == (403, "invalid-token")


def test_a_secret_is_replaced_while_its_tokens_stay_valid() -> None:
    before, after = StreamTokens(SECRET), StreamTokens(SECRET, "newer-" + "1" * 32)
    assert after.access(before.sign("mine"), "mine").allows(Action.READ)
    with pytest.raises(Problem, match="the token is not valid"):
        before.access(after.sign("mine"), "mine")


def test_secrets_and_times_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="32 characters"):
        StreamTokens("short")
    with pytest.raises(ConfigurationError, match="one or more"):
        StreamTokens()
    for seconds in (0, -1, 31 * 86_400):
        with pytest.raises(ConfigurationError, match="expires_in must be above 0"):
            StreamTokens(SECRET).sign("mine", expires_in=seconds)
