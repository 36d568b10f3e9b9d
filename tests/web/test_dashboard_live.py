"""Streams that say when something has happened, several databases, and preferences."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from queuert import AsyncClient
from queuert.errors import ConfigurationError
from queuert.state.sqlite import SQLiteState
from queuert.state.types import NewJob
from queuert.state.webhooks import NewWebhookAttempt
from queuert.web import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access, Action, bearer_tokens
from queuert.web.dashboard import DashboardApp
from queuert.web.dashboard import live as live_module
from queuert.web.dashboard.live import LiveStreams
from queuert.web.dashboard.visit import SharedReads
from tests.support.harness import Harness
from tests.support.job_types import JOB_TYPES, anything, number, text
from tests.support.waiting import in_time
from tests.web.applications import Http
from tests.web.test_dashboard import claimed


def everything(request: Any) -> Access:
    return FULL_ACCESS


class Stream:
    """A stream that a test reads event by event."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> str:
        return await in_time(self.events.get())


@asynccontextmanager
async def opened(app: DashboardApp, path: str = "/live") -> AsyncIterator[Stream]:
    """Open a stream of the application, without a server between."""
    stream, gone = Stream(), asyncio.Event()
    address, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": address, "raw_path": address.encode(), "root_path": "",
        "query_string": query.encode(), "headers": [], "scheme": "http", "server": ("queue.test", 80),
        "client": ("127.0.0.1", 1), "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        for name in re.findall(r"^event: (\w+)$", message.get("body", b"").decode(), re.MULTILINE):
            stream.events.put_nowait(name)

    task = asyncio.create_task(app(scope, receive, send))
    try:
        yield stream
    finally:
        gone.set()
        await in_time(task)


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "TICK", 0.02)


async def test_a_stream_says_when_something_happens(harness: Harness) -> None:
    app = DashboardApp(harness.client, access=everything)
    async with opened(app) as stream:
        assert await stream.next() == "ready"
        await harness.client.start_chain(number, 1)
        assert await stream.next() == "changed"


async def test_the_stream_of_a_chain_says_only_what_happens_to_it(harness: Harness) -> None:
    mine, other = [await harness.client.start_chain(number, n) for n in range(2)]
    app = DashboardApp(harness.client, access=everything)
    async with opened(app) as all_chains, opened(app, f"/live?chain={mine.id}") as one:
        assert [await all_chains.next(), await one.next()] == ["ready", "ready"]
        await other.cancel()
        while await all_chains.next() != "changed":
            pass
        assert one.events.empty()
        await mine.cancel()
        assert await one.next() == "changed"


async def test_streams_end_when_the_server_stops(harness: Harness) -> None:
    app = DashboardApp(harness.client, access=everything)
    async with opened(app) as stream:
        assert await stream.next() == "ready"
        app.stop()
    async with opened(app) as stream:
        pass
    assert stream.events.empty()


async def test_a_stream_needs_access_and_a_place(harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = http(DashboardApp(harness.client, access=lambda request: NO_ACCESS))
    assert (await closed.get("/live")).status_code == 403
    token = http(DashboardApp(harness.client, access=bearer_tokens({"t" * 20: FULL_ACCESS})))
    assert (await token.get("/live")).status_code == 401
    monkeypatch.setattr(live_module, "MOST_STREAMS", 0)
    assert (await http(DashboardApp(harness.client, access=everything)).get("/live")).status_code == 503


async def test_a_principal_has_so_many_streams_and_others_have_theirs(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are opened at the same time."""
    monkeypatch.setattr(live_module, "MOST_STREAMS", 3)
    monkeypatch.setattr(live_module, "MOST_STREAMS_OF_ONE", 2)
    principal = ["ada"]
    app = DashboardApp(harness.client, access=lambda request: Access(Action, principal=principal[0]))
    web = http(app)
    async with opened(app) as first, opened(app) as second:
        assert [await first.next(), await second.next()] == ["ready", "ready"]
        refused = await web.get("/live")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        principal[0] = "grace"
        async with opened(app) as hers:
            assert await hers.next() == "ready"
            assert (await web.get("/live")).status_code == 503, "of all"
        assert len(app._live.waiting) == 2
        async with AsyncExitStack() as stack:
            burst = await asyncio.gather(*(stack.enter_async_context(opened(app)) for _ in range(3)))
            await asyncio.gather(*(web.get("/chains") for _ in range(3)))
            nexts = [asyncio.ensure_future(one.next()) for one in burst]
            admitted, others = await asyncio.wait(nexts, return_when=asyncio.FIRST_COMPLETED)
            assert [one.result() for one in admitted] == ["ready"]
            assert len(app._live.waiting) == 3
            for one in others:
                one.cancel()
    assert not app._live.waiting


async def test_a_look_that_fails_is_not_the_last(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "TICK", 0.01)
    newest, failed = live_module.Pulse.newest, asyncio.Event()

    async def failing(pulse: live_module.Pulse) -> Any:
        if pulse.grown and not failed.is_set():
            failed.set()
            raise ValueError("a defect")
        return await newest(pulse)

    monkeypatch.setattr(live_module.Pulse, "newest", failing)
    async with opened(DashboardApp(harness.client, access=everything)) as stream:
        assert await stream.next() == "ready"
        await harness.client.start_chain(number, 1)
        assert await stream.next() == "changed"
        await in_time(failed.wait())
        await harness.client.start_chain(number, 2)
        assert await stream.next() == "changed"
    assert "ValueError: a defect" in caplog.text


async def test_a_session_that_has_ended_ends_its_stream(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "CHECK_ACCESS", 0.05)
    allowed = [FULL_ACCESS]
    app = DashboardApp(harness.client, access=lambda request: allowed[0])
    streams = LiveStreams()
    app._live = streams
    async with opened(app) as stream:
        assert await stream.next() == "ready"
        allowed[0] = NO_ACCESS
        while streams.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_one_reads_for_all_who_ask_at_once() -> None:
    shared, reading, reads = SharedReads(), asyncio.Event(), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await reading.wait()
        return reads

    tasks = [asyncio.create_task(shared.read("counts", 60.0, read)) for _ in range(5)]
    await asyncio.sleep(0)
    reading.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    shared.forget()
    assert await shared.read("counts", 60.0, read) == 2


async def test_what_is_too_old_to_be_shown_is_not_kept() -> None:
    class Found:
        """What a read returns."""

    async def read() -> Found:
        return Found()

    shared = SharedReads()
    old, fresh = [weakref.ref(await shared.read(name, age, read)) for name, age in (("old", -1.0), ("fresh", 60.0))]
    await shared.read("another", 60.0, read)
    gc.collect()
    assert (old(), fresh() is None) == (None, False)


async def test_a_part_that_takes_too_long_is_left_out(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = asyncio.Event()

    async def slow(**settings: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    monkeypatch.setattr(local.client, "count_jobs", slow)
    answer = await http(DashboardApp(local.client, access=everything, timeout=1.0)).get("/")
    assert answer.status_code == 200
    assert "Left out, since it took longer than 1 s: the counts of jobs" in answer.text
    assert cancelled.is_set()


FACTS = {
    "/": (
        "oldest none", "of 0 slots", "No worker handles", "has vanished", "No jobs yet", ">0</a><small>alive",
        "<b>0</b> finished", "0 finished, 0 failed", ">0</a><small>jobs, in all", "waits for", "is late",
    ),
    "/types": ("No jobs yet", 'class="zero"', "late"),
    "/type?name=number": (
        "oldest none", "No live worker", "None is alive", "No jobs.", "None.", "0<small>handle it", "<b>0</b> finished",
        "No attempts in this time", ">0</a>", "0<small>a minute, of", 'class="quiet">0</span>',
    ),
    "/workers": ("No workers", "vanished</span>"),
    "/worker?name=here": ("vanished</span>", "It has written no heartbeat", "None.", 'class="quiet">0</span>'),
    "/failures": ("All 0 failed chains", "No chain has failed"),
    "/events": ("No events here",),
    "/system": ("<dd>0</dd>", "None.", "This store has no checks"),
}  # fmt: skip
"""What pages say of a database in which there is nothing: they must not say it of what they could not read."""


READS = (
    "count_jobs", "list_workers", "list_jobs", "get_activity", "list_schedules", "list_chains", "list_events",
    "get_event_log", "get_blockers",
)  # fmt: skip
"""The reads of parts that have a time."""


@pytest.mark.parametrize("path", FACTS)
async def test_what_was_not_read_in_time_is_no_fact(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def slow(*arguments: Any, **settings: Any) -> Any:
        raise TimeoutError

    def never() -> Any:
        raise TimeoutError

    web = http(DashboardApp(local.client, access=everything))
    empty = (await web.get(path.replace("number", "unknown"))).text
    assert path.startswith("/type?") == ("no job and no worker has the type" in empty)
    for name in READS:
        monkeypatch.setattr(local.client, name, slow)
    monkeypatch.setattr(type(local.state), "diagnose", lambda state: never())
    answer = await http(DashboardApp(local.client, access=everything)).get(path)
    assert answer.status_code == 200, answer.text
    assert "Left out, since it took longer than" in answer.text
    assert "—" in answer.text or "Not read in time" in answer.text
    assert [fact for fact in FACTS[path] if fact in answer.text] == []


async def test_a_page_has_the_same_regions_with_and_without_each_part(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the page changes as a whole when a part of it was slow, and changes again."""
    blocker = await local.client.start_chain(number, 1)
    chain = await local.client.start_chain(text, "a", blockers=[blocker])

    async def slow(*arguments: Any, **settings: Any) -> Any:
        raise TimeoutError

    async def regions(path: str) -> list[str]:
        answer = await http(DashboardApp(local.client, access=everything)).get(path)
        return sorted(re.findall(r' data-region="([^"]*)"', answer.text))

    for path in (*FACTS, f"/chain?events=1&id={chain.id}", f"/job?id={chain.id}"):
        whole = await regions(path)
        assert "read" in whole
        for name in (*READS, "explain"):
            if path == f"/{name.removeprefix('list_')}":
                continue
            with monkeypatch.context() as patch:
                patch.setattr(local.client, name, slow)
                assert await regions(path) == whole, (path, name)


async def test_a_type_that_nothing_confirms_has_no_forms(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*arguments: Any, **settings: Any) -> Any:
        raise TimeoutError

    for name, status in (
        ("get_activity", 404),
        ("get_event_log", 404),
        ("list_schedules", 404),
        ("count_jobs", 200),
        ("list_workers", 200),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(local.client, name, slow)
            web = http(DashboardApp(local.client, access=everything))
            for type in ("nobody-knows", "number"):
                answer = await web.get("/type", params={"name": type})
                known = type == "number"
                assert answer.status_code == (200 if known else status), (name, answer.text)
                assert ("Pause type" in answer.text) == known, name
                assert ('action="/types/event-level"' in answer.text) == (known and name != "get_event_log"), name


async def test_a_type_whose_counts_were_not_read_is_not_missing(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an id that a search did not find among what it could not read."""
    store = local.client.state.async_store()
    await store.open()
    await store.start_jobs([NewJob("one", "of-another-program", "1")])
    await store.aclose()
    web = http(DashboardApp(local.client, access=everything))
    assert (await web.get("/type?name=of-another-program")).status_code == 200
    assert (await web.get("/type?name=nobody-knows")).status_code == 404
    assert (await web.get("/search?q=nobody-knows")).status_code == 404

    async def slow(**settings: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr(local.client, "count_jobs", slow)
    web = http(DashboardApp(local.client, access=everything))
    answer = await web.get("/type?name=of-another-program")
    assert (answer.status_code, "oldest —" in answer.text) == (200, True)
    answer = await web.get("/search?q=of-another-program")
    assert (answer.status_code, "not everything was read in time" in answer.text) == (503, True)


async def test_a_page_that_takes_too_long_says_so(local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(**settings: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(local.client, "list_chains", slow)
    answer = await http(DashboardApp(local.client, access=everything, timeout=0.05)).get("/chains")
    assert (answer.status_code, "did not answer within 0.1 seconds" in answer.text) == (504, True)


# --- several databases ------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[dict[str, AsyncClient]]:
    clients = {name: AsyncClient(SQLiteState(tmp_path / f"{name}.db"), JOB_TYPES) for name in ("shop", "reports")}
    yield clients
    for client in clients.values():
        await client.aclose()


async def test_each_database_has_its_pages(two: dict[str, AsyncClient], http: Http) -> None:
    mine = await two["shop"].start_chain(number, 1)
    other = await two["reports"].start_chain(number, 2)
    web = http(DashboardApp(two, access=everything), follow_redirects=True)
    first = await web.get("/chains?status=open")
    assert str(first.url).endswith("/@shop/chains?status=open")
    assert (mine.id in first.text, other.id in first.text) == (True, False)
    second = await web.get("/@reports/chains")
    assert (mine.id in second.text, other.id in second.text) == (False, True)
    # Links stay in the database, except those to the others.
    links = set(re.findall(r'(?:href|action)="([^"#]+)"', second.text))
    apart = ("/static/", "/preferences")
    assert {one for one in links if not one.startswith(("/@reports/", *apart))} == {"/@shop/"}
    answer = await web.post("/@reports/chain/cancel", data={"id": other.id})
    assert "The chain was cancelled." in answer.text
    assert (await web.post("/chain/cancel", data={"id": mine.id})).status_code == 404
    assert (await web.get("/@unknown/chains")).status_code == 404
    assert (await mine.refresh()).status == "open"


async def test_databases_below_a_prefix(two: dict[str, AsyncClient], http: Http) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    mounted = Starlette(routes=[Mount("/ops/queue", DashboardApp(two, access=everything))])
    web = http(mounted, headers={"X-Forwarded-Prefix": "/outer"})
    answer = await web.get("/ops/queue/chains")
    assert answer.headers["location"] == "/outer/ops/queue/@shop/chains"
    page = await web.get("/ops/queue/@reports/chains")
    links = re.findall(r'(?:href|action|src)="([^"#]+)"', page.text)
    assert not [link for link in links if not link.startswith("/outer/ops/queue/")]


async def test_a_login_leads_back_to_the_database(two: dict[str, AsyncClient], http: Http) -> None:
    web = http(DashboardApp(two, access=bearer_tokens({"t" * 20: FULL_ACCESS})), follow_redirects=True)
    answer = await web.get("/@reports/chains")
    assert 'name="next" value="/@reports/chains"' in answer.text
    answer = await web.post("/login", data={"token": "t" * 20, "next": "/@reports/chains"})
    assert str(answer.url).endswith("/@reports/chains")


@pytest.mark.parametrize("name", ["", "a/b", "..", "é"])
async def test_the_name_of_a_database_can_be_in_a_path(local: Harness, name: str) -> None:
    if name != "..":
        with pytest.raises(ConfigurationError, match="name of a database must match"):
            DashboardApp({name: local.client})


async def test_settings_are_checked(local: Harness) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be above 0"):
        DashboardApp(local.client, timeout=0)
    with pytest.raises(ConfigurationError, match="trace_url must have"):
        DashboardApp(local.client, trace_url="https://tempo.example/")
    with pytest.raises(ConfigurationError, match="one or more of them"):
        DashboardApp({})


# --- preferences ------------------------------------------------------------------------------------------------------


async def test_theme_and_time_zone_are_kept(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 1)
    web = http(DashboardApp(local.client, access=lambda request: READ_ACCESS))
    assert 'data-theme="auto"' in (await web.get("/")).text
    answer = await web.post("/preferences", data={"theme": "dark", "next": "/chains?status=open"})
    assert answer.headers["location"] == "/chains?status=open"
    await web.post("/preferences", data={"zone": "Asia/Kolkata", "next": "/chains"})
    page = (await web.get("/chains")).text
    assert 'data-theme="dark"' in page
    assert re.search(r'title="[\d :.-]+ IST"', page)
    for bad in ({"theme": "pink"}, {"zone": "../../etc/passwd"}, {"zone": "Mars/Base"}, {"zone": "A" * 200}):
        assert (await web.post("/preferences", data=bad)).status_code == 400
    web.cookies.clear()
    web.cookies.update({"queuert_zone": "../x", "queuert_theme": "<b>"})
    page = (await web.get("/chains")).text
    assert ('data-theme="auto"' in page, "<b>" in page) == (True, False)


async def test_preferences_lead_to_no_other_site_and_need_access(local: Harness, http: Http) -> None:
    web = http(DashboardApp(local.client, access=everything))
    answer = await web.post("/preferences", data={"theme": "dark", "next": "//evil.test"})
    assert answer.headers["location"] == "/"
    answer = await web.post("/preferences", data={"theme": "dark"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    closed = http(DashboardApp(local.client))
    assert (await closed.post("/preferences", data={"theme": "dark"})).status_code == 403


async def test_a_trace_is_linked(local: Harness, http: Http) -> None:
    store = local.client.state.async_store()
    await store.open()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    context = f'{{"traceparent":"00-{trace}-00f067aa0ba902b7-01"}}'
    await store.start_jobs([NewJob("one", "number", "1", trace_context=context)])
    await store.aclose()
    web = http(DashboardApp(local.client, access=everything, trace_url="https://tempo.example/trace/{trace_id}"))
    assert f"https://tempo.example/trace/{trace}" in (await web.get("/job?id=one")).text
    assert (await local.client.get_job("one")).trace_id == trace


async def test_a_read_of_the_api_is_no_page(local: Harness, http: Http) -> None:
    """The stream is not one of the pages: it answers in words, and sends no page to a program."""
    answer: httpx.Response = await http(DashboardApp(local.client)).get("/live")
    assert (answer.status_code, answer.headers["content-type"]) == (403, "text/plain; charset=utf-8")


def test_each_row_of_a_page_that_refreshes_has_an_id() -> None:
    """By it the script knows which row of the page is which of the fresh one: their forms must not be mixed."""
    checked = 0
    for path in sorted((files("queuert.web.dashboard") / "templates").iterdir(), key=str):
        template = path.read_text()
        if "refreshes = false" in template:
            continue
        for row in re.findall(r"<tr\b.*?</td>", re.sub(r"<thead>.*?</thead>", "", template), re.DOTALL):
            checked += 1
            assert '<tr id="' in row or 'class="empty"' in row, f"{path.name}: {row}"
    assert checked > 20


class Unrefreshed(HTMLParser):
    """Finds what a page shows of the database outside of its regions, which alone are refreshed."""

    VOID = frozenset({"input", "meta", "link", "img", "br"})
    SHOWN = frozenset({"td", "dd", "pre", "svg", "button", "nav"})
    ENDS_PARAGRAPH = frozenset({"div", "dl", "form", "h2", "nav", "ol", "p", "pre", "section", "table", "ul"})
    """Browsers close an open paragraph where one of these begins."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.found: list[str] = []
        self.feed(page[page.index("<main") : page.index("</main>")])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = set((given.get("class") or "").split())
        if tag in self.ENDS_PARAGRAPH:
            self.handle_endtag("p")
        # Filters are a reader's, who may be typing.
        refreshed = "data-region" in given or not classes.isdisjoint(("filter", "spans"))
        refreshed = refreshed or (bool(self.open) and self.open[-1][1])
        if not refreshed and (tag in self.SHOWN or not classes.isdisjoint(("warning", "pill", "selection"))):
            self.found.append(f"{tag} {given}")
        if tag not in self.VOID:
            self.open.append((tag, refreshed))

    def handle_endtag(self, tag: str) -> None:
        while tag in [one for one, _ in self.open] and self.open.pop()[0] != tag:
            pass


def test_what_is_shown_outside_of_a_region_is_found() -> None:
    for inside in ('<span class="pill s-open">open</span>', "<nav>Older</nav>", '<div class="selection"></div>'):
        assert len(Unrefreshed(f"<main>{inside}</main>").found) == 1
        assert Unrefreshed(f'<main><div data-region="list">{inside}</div></main>').found == []
    assert (
        len(Unrefreshed('<main><p data-region="level">It is <form><button>Set</button></form></p></main>').found) == 1
    )


async def filled(local: Harness) -> list[str]:
    """Have something on each page that refreshes; return their paths."""
    blocker = await local.client.start_chain(number, 1)
    chain = await local.client.start_chain(text, "a", blockers=[blocker])
    await blocker.cancel()
    webhook = await local.client.create_webhook("https://example.com/hook")
    await local.client.disable_webhook(webhook.webhook.id, reason="no more")
    await local.client.pause_job_types([number])
    for _ in range(2):
        await local.client.start_bulk_operation("cancel", requested_by="ada")
    store = await local.client._open_store()
    delivery = NewWebhookAttempt(webhook.webhook.id, "delivery", "chain.failed", 1, 500, "http", 0.1, None, None)
    await store.record_webhook_attempts([delivery, replace(delivery, attempt=2)])
    ids = ("/chain?id={}", "/job?id={}", "/chain?events=1&id={}")
    paths = [one.format(chain_id) for one in ids for chain_id in (chain.id, blocker.id)]
    paths += [
        "/", "/types", "/type?name=number", "/workers", "/worker?name=here", "/failures", "/schedules", "/webhooks",
        f"/webhook?id={webhook.webhook.id}", "/operations", "/events", "/system", "/chains", "/jobs",
    ]  # fmt: skip
    return paths


async def test_all_that_pages_show_is_refreshed(local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chains.PAGE", "jobs.PAGE", "operations.PAGE", "webhooks.PAGE", "events.EVENTS", "chains.EVENTS"):
        monkeypatch.setattr(f"queuert.web.dashboard.pages.{name}", 1)
    paths = await filled(local)
    web = http(DashboardApp(local.client, access=everything))
    turned = 0
    for path in paths:
        answer = await web.get(path)
        assert answer.status_code == 200, answer.text
        assert Unrefreshed(answer.text).found == [], path
        turned += answer.text.count(">Older</a>")
    assert turned == 7


class Said(HTMLParser):
    """What the script compares of a page: all but times, ages, pictures and hidden fields."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.left_out: list[str] = []
        self.feed(page[page.index("<main") : page.index("</main>")])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in Unrefreshed.VOID:
            if given.get("type") != "hidden":
                self.found.append(f"{tag} {attrs}")
        elif self.left_out or tag in ("time", "svg") or "data-age" in given:
            self.left_out.append(tag)
        else:
            self.found.append(f"{tag} {attrs}")

    def handle_endtag(self, tag: str) -> None:
        if self.left_out:
            self.left_out.pop()

    def handle_data(self, data: str) -> None:
        if not self.left_out:
            self.found.append(data)


async def test_a_page_on_which_nothing_has_changed_says_the_same_later(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then do pages that poll do it less and less often."""
    paths = await filled(local)
    # What the checks find, such as free space, changes by itself.
    paths.remove("/system")
    running = await local.client.start_chain(anything, 1)
    await claimed(local, anything.name, "worker")
    paths += [f"/chain?id={running.id}", f"/job?id={running.id}", "/type?name=anything", "/jobs?status=running"]
    count_jobs, passed = local.client.count_jobs, 0.0

    async def later_counts(**settings: Any) -> Any:
        found = await count_jobs(**settings)
        return [one if one.oldest_seconds is None else replace(one, oldest_seconds=5 + passed) for one in found]

    class Later(datetime):
        """The clock, seven seconds later."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=passed)

    monkeypatch.setattr(local.client, "count_jobs", later_counts)
    monkeypatch.setattr("queuert.web.dashboard.visit.datetime", Later)
    said = []
    for seconds in (0.0, 7.0):
        passed = seconds
        web = http(DashboardApp(local.client, access=everything))
        said.append([Said((await web.get(path)).text).found for path in paths])
    for path, before, after in zip(paths, *said, strict=True):
        assert after == before, path
