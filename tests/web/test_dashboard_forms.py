"""Where forms come from and lead to, what lists find, and what pages say in words and numbers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from queuert import ChainStatus, JobStatus, NewChain, Outcome, RecurringSchedule, after
from queuert.activity import Activity
from queuert.errors import StateUnavailableError
from queuert.event_log import EventKind
from queuert.ids import new_id, new_token
from queuert.state.adapter import Capability
from queuert.state.types import ClaimRequest, TypeCount
from queuert.web import FULL_ACCESS, READ_ACCESS, Access, Action, bearer_tokens
from queuert.web.dashboard import DashboardApp
from queuert.web.dashboard import charts as charts_module
from queuert.web.dashboard import live as live_module
from queuert.web.dashboard.pages import chains as chains_page
from queuert.web.dashboard.pages import workers as workers_page
from queuert.web.dashboard.pages.shared import EXACT
from queuert.workers import WorkerHeartbeat
from tests.support.harness import Harness
from tests.support.job_types import anything, echo, loop, number
from tests.support.waiting import WAIT, in_time
from tests.web.applications import Http
from tests.web.test_dashboard import ONCE, TOKEN, dashboard, fail_jobs, form_fields, read, record
from tests.web.test_dashboard_live import everything, opened

OTHER_PLACES = (
    "chains", "//evil.test/", "https://evil.test/", "/\\evil.test/", "/\t/evil.test/", "/\t\\evil.test/",
    "/\n/evil.test", "/\r\n\\evil.test", "/chains\\..", "/../other", "/chains/../../other", "/chains/..?id=1",
    "/./chains", "/.%2E/other", "/%2e%2e", "/\x7f/",
)  # fmt: skip
"""What a browser would take for another site, or for a page beside the dashboard."""


def preferences_of(page: str) -> str:
    """Where the form of the theme leads back to."""
    return form_fields(page, "/preferences")["next"]


# --- who sends a form -------------------------------------------------------------------------------------------------


async def test_a_form_says_from_which_site_it_is(local: Harness, http: Http) -> None:
    chain = await local.client.start_chain(number, 1)
    app = DashboardApp(local.client, access=bearer_tokens({TOKEN: FULL_ACCESS}))
    web = http(app)
    await web.post("/login", data={"token": TOKEN})
    del web.headers["origin"]
    for path, form in (
        ("/chain/cancel", {"id": chain.id}), ("/preferences", {"theme": "dark"}), ("/login", {"token": TOKEN}),
        ("/logout", {}),
    ):  # fmt: skip
        answer = await web.post(path, data=form)
        assert (answer.status_code, "from which site" in answer.text) == (403, True), path
    assert (await chain.refresh()).status is ChainStatus.OPEN
    # No browser adds a bearer token by itself, but a proxy may.
    token = {"Authorization": f"Bearer {TOKEN}"}
    for said in (
        {"Origin": "https://evil.test"}, {"Origin": "null"}, {"Origin": "http://[x"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://queue.test"},
    ):  # fmt: skip
        for headers in (said, {**said, **token}):
            answer = await web.post("/chain/cancel", data={"id": chain.id}, headers=headers)
            assert (answer.status_code, "of another site" in answer.text) == (403, True), headers
    assert (await chain.refresh()).status is ChainStatus.OPEN
    for headers in (token, {"Sec-Fetch-Site": "same-origin"}, {**token, "Origin": "http://queue.test"}):
        assert (await web.post("/chain/cancel", data={"id": chain.id}, headers=headers)).status_code == 303


async def test_who_only_reads_is_shown_how_to_get_more(local: Harness, http: Http) -> None:
    await local.client.put_schedules([RecurringSchedule("nightly", number, 1, cron="0 3 * * *")])
    for access, reads in (
        (READ_ACCESS, True), (Access([Action.READ, Action.READ_PAYLOADS]), True),
        (Access([Action.READ, Action.PAUSE]), False), (FULL_ACCESS, False),
    ):  # fmt: skip
        page = await read(http(dashboard(local, access)), "/schedules")
        assert ("You can look, and change nothing." in page) is reads
        assert ("Pause nightly" in page) is access.allows(Action.PAUSE)
    web = http(DashboardApp(local.client, access=bearer_tokens({TOKEN: READ_ACCESS})))
    await web.post("/login", data={"token": TOKEN})
    assert "Log in with a token that may do more" in await read(web, "/")


# --- where a form leads to --------------------------------------------------------------------------------------------


async def test_a_page_that_answers_a_form_has_an_address_to_go_back_to(local: Harness, http: Http) -> None:
    """The theme can be switched there, too: a form is sent to an address that may be no page."""
    chain = await local.client.start_chain(number, 1, run_at=after(hours=1))
    hook = (await local.client.create_webhook("https://crm.example/hook")).webhook
    web = http(dashboard(local))
    for path, form, place in (
        ("/chain/change", {"id": chain.id, "priority": "high"}, f"/chain/change?id={chain.id}"),
        ("/chain/complete", {"id": chain.id, "type": "number", "output": "{"},
         f"/chain/complete?id={chain.id}&type=number"),
        ("/chains/selected", {"id": chain.id, "action": "retry"}, f"/chains/selected?id={chain.id}&action=retry"),
        ("/chain/retry", {"id": chain.id}, f"/chain?id={chain.id}"),
        ("/schedules/run", {"name": "no&ne"}, "/schedules?name=no%26ne"),
        ("/types/event-level", {"type": "number", "level": "loud"}, "/type?name=number"),
        ("/webhooks/replay", {"id": hook.id, "delivery": "none"}, f"/webhook?id={hook.id}"),
    ):  # fmt: skip
        answer = await web.post(path, data=form)
        assert answer.status_code >= 400
        assert preferences_of(answer.text) == place
        back = await web.post("/preferences", data={"theme": "dark", "next": place})
        assert (await web.get(back.headers["location"])).status_code == 200
    assert preferences_of(await read(web, "/chains", status="open", notice="deleted")) == "/chains?status=open"


async def test_a_change_leads_back_to_the_list_with_its_filter(local: Harness, http: Http) -> None:
    await fail_jobs(local, 1)
    web = http(dashboard(local))
    page = await read(web, "/chains", status="failed", type="anything")
    [id] = re.findall(r'<input type="checkbox" name="id" value="([^"]+)"', page)
    fields = {**form_fields(page, "/chains/selected"), "id": id, "action": "delete"}
    confirm = await read(web, "/chains/selected", **fields)
    assert 'href="/chains?status=failed&amp;type=anything">Back' in confirm
    for place in OTHER_PLACES:
        assert 'href="/">Back' in await read(web, "/chains/selected", **{**fields, "next": place}), place
    answer = await web.post("/chains/selected", data=form_fields(confirm, "/chains/selected"))
    assert answer.headers["location"] == "/chains?status=failed&type=anything&notice=selected-delete"
    for place, there in (("/%09/[x", "/%09/[x"), ("/chains?error=..", "/chains?error=.."), ("/\t/[x", "/")):
        answer = await web.post("/preferences", data={"theme": "dark", "next": place})
        assert (answer.status_code, answer.headers["location"]) == (303, there)

    names = ("nightly", "hourly")
    await local.client.put_schedules([RecurringSchedule(name, number, 1, cron="0 3 * * *") for name in names])
    page = await read(web, "/schedules", name="night")
    answer = await web.post("/schedules/pause", data=form_fields(page, "/schedules/pause"))
    assert answer.headers["location"] == "/schedules?name=night&notice=schedule-paused"
    delete = re.search(r'href="([^"]*/schedules/delete[^"]*)"', page)
    assert delete is not None
    confirm = (await web.get(unescape(delete[1]))).text
    answer = await web.post("/schedules/delete", data=form_fields(confirm, "/schedules/delete"))
    assert answer.headers["location"] == "/schedules?name=night&notice=schedule-deleted"
    bulk = await read(web, "/operations/start", action="cancel", status="open", type="number")
    assert 'href="/chains?type=number&amp;status=open">Back' in bulk


async def test_due_time_and_priority_are_written_together(harness: Harness, http: Http) -> None:
    """A job that is due earlier may run before a second write."""
    chain = await harness.client.start_chain(number, 1, run_at=after(hours=1))
    form = {"id": chain.id, "run_at": "2030-01-01T00:00", "priority": "7"}
    assert (await http(dashboard(harness)).post("/chain/change", data=form)).status_code == 303
    job = await harness.client.get_job(chain.id)
    assert (job.scheduled_at.year, job.priority) == (2030, 7)
    if Capability.EVENTS in harness.state.capabilities:
        events = await harness.client.list_events(chain=chain)
        assert [one.kind for one in events.items] == [EventKind.RESCHEDULED, EventKind.CREATED]


async def test_what_waits_is_rescheduled_and_reprioritized_by_filter(local: Harness, http: Http) -> None:
    chain = await local.client.start_chain(number, 1, run_at=after(hours=1))
    web = http(dashboard(local, Access([Action.READ, Action.CHANGE], principal="ada")), follow_redirects=True)
    page = await read(web, "/chains", status="open")
    assert re.findall(r"<button>(\w+) all that match…", page) == ["Reschedule", "Reprioritize"]
    for action, value, wrong, status in (
        ("reschedule", {"run_at": "2030-01-01T00:00"}, {"run_at": "soon"}, 400),
        ("reprioritize", {"priority": "7"}, {"priority": "high"}, 400),
        ("reschedule", {"run_at": "2031-01-01T00:00"}, {}, 422),
    ):
        confirm = await read(web, "/operations/start", action=action, status="open", type="number")
        fields = form_fields(confirm, "/operations/start")
        answer = await web.post("/operations/start", data={**fields, **wrong})
        assert (answer.status_code, 'role="alert"' in answer.text) == (status, True)
        answer = await web.post("/operations/start", data={**fields, **value})
        assert "The operation was started." in answer.text
        while await local.client.run_bulk_operations():
            pass
    job = await local.client.get_job(chain.id)
    assert (job.scheduled_at.year, job.priority) == (2031, 7)


DUE_FORMS = (("/chain/change", "/chain"), ("/operations/start", "/operations"))
"""The forms that have a due time, and where they lead."""


@pytest.mark.parametrize(("form", "leads_to"), DUE_FORMS)
async def test_a_due_time_is_to_come_and_is_shown_before_it_is_written(
    harness: Harness, http: Http, form: str, leads_to: str
) -> None:
    chain = await harness.client.start_chain(number, 1, run_at=after(hours=1))
    web = http(dashboard(harness), follow_redirects=True)
    address = {"id": chain.id} if form == "/chain/change" else {"action": "reschedule", "type": "number"}

    async def due() -> datetime:
        await harness.client.run_bulk_operations()
        return (await harness.client.get_job(chain.id)).scheduled_at

    assert 'name="run_at"' in await read(web, form, **address)
    before = datetime.now(UTC)
    shown = await read(web, form, **address, run_at="30h")
    fields = form_fields(shown, form)
    moment = datetime.fromisoformat(fields["run_at"])
    assert before <= moment - timedelta(hours=30) <= datetime.now(UTC)
    assert f"{moment:%Y-%m-%d %H:%M:%S} UTC" in shown
    written = await web.post(form, data=fields)
    assert written.url.path == leads_to
    assert f'Due <time datetime="{moment.isoformat()}' in written.text
    assert await due() == moment

    for text, why in (
        ("2020-01-01T00:00", "2020-01-01 00:00:00 UTC"), ("soon", "such as"), ("-8h", "such as"),
        (datetime.now(UTC).replace(year=1990).isoformat(), "1990-"), ("2020-01-01T00:00+01:00", "2019-12-31"),
    ):  # fmt: skip
        for answer in (
            await web.get(form, params={**address, "run_at": text}),
            await web.post(form, data={**fields, "run_at": text, "confirmed": ""}),
        ):
            assert answer.status_code == 400
            beside = re.search(r'<input name="run_at"[^>]*aria-invalid.*?<small class="refused"[^>]*>(.*?)</small>',
                               answer.text)  # fmt: skip
            assert beside is not None
            assert why in unescape(beside[1])
            assert f'value="{text}"' in unescape(answer.text)
            assert answer.text.count('role="alert"') == 1
    assert await due() == moment

    # What was to come when it was confirmed may have passed since.
    passed = datetime.now(UTC) - timedelta(minutes=1)
    before = datetime.now(UTC)
    other = {**fields, "operation_id": new_id()}
    assert (await web.post(form, data={**other, "run_at": passed.isoformat()})).status_code == 200
    assert before <= await due() <= datetime.now(UTC)
    await web.post(form, data={**other, "operation_id": new_id()})
    assert await due() == moment

    shown = await read(web, form, **address, run_at="Now")
    assert form_fields(shown, form)["run_at"] == "now"
    await web.post(form, data=form_fields(shown, form))
    assert await due() <= datetime.now(UTC)


async def test_a_time_of_a_filter_is_ago(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 1)
    web = http(dashboard(local))
    assert "No chains match this filter." in await read(web, "/chains", before="8h")
    assert "number" in await read(web, "/chains", since="8h")


async def test_a_job_that_a_client_completes_says_so_and_offers_it(harness: Harness, http: Http) -> None:
    await record(harness, {"number": None})
    chain = await harness.client.start_chain(number, 1)
    other = await harness.client.start_chain(loop, 1)
    web = http(dashboard(harness), follow_redirects=True)
    page = await read(web, "/job", id=chain.id)
    assert "It waits until a client completes it" in page
    assert "A client completes it, so it has no attempts." in page
    address = re.search(r'<a class="button primary" href="([^"]*)">Complete…', page)
    assert address is not None
    assert f'class="button primary" href="{address[1]}">Complete…' in await read(web, "/chain", id=chain.id)
    form = (await web.get(unescape(address[1]))).text
    assert "It waits for a client" in form
    fields = form_fields(form, "/chain/complete")
    refused = await web.post("/chain/complete", data={**fields, "output": '"a"'})
    assert (refused.status_code, 'id="refused-output"' in refused.text) == (422, True)
    assert "completed with your output" in (await web.post("/chain/complete", data={**fields, "output": "7"})).text
    assert await chain.result(timeout=WAIT) == 7
    page = await read(web, "/job", id=chain.id)
    assert ("waits until a client" in page, "It ended without an attempt." in page) == (False, True)
    page = await read(web, "/job", id=other.id)
    assert ("waits until a client" in page, "Complete…" in page) == (False, False)
    reader = http(dashboard(harness, READ_ACCESS))
    chain = await harness.client.start_chain(number, 1)
    page = await read(reader, "/job", id=chain.id)
    assert ("waits until a client" in page, "Complete…" in page) == (True, False)
    # Neither one that waits for another chain, nor one that a worker runs all the same.
    blocked = await harness.client.start_chain(number, 2, blockers=[other])
    store = await harness.client._open_store()
    [running] = await store.claim(ClaimRequest({"number": 60.0}, 1, "somebody", new_token()))
    for id in (blocked.id, running.id):
        page = await read(web, "/job", id=id)
        assert ("waits until a client" in page, "so it has no attempts" in page) == (False, False)
        assert "A running attempt is told to stop" in await read(web, "/chain/complete", id=id)


async def test_what_failed_together_is_retried_together(harness: Harness, http: Http) -> None:
    async def fail(attempt: Any) -> Outcome[Any]:
        raise ValueError("the gateway is down")

    harness.handles(anything, fail, retry=ONCE)
    harness.handles(number, echo)
    blocker = await harness.client.start_chain(anything, 1)
    chains = [await harness.client.start_chain(number, n, blockers=[blocker]) for n in range(2)]
    [last] = [await harness.client.start_chain(number, 3, blockers=[chains[0]])]
    async with harness.worker():
        await harness.client.wait([blocker, *chains, last], timeout=WAIT)
    web = http(dashboard(harness), follow_redirects=True)
    page = await read(web, "/chain", id=blocker.id)
    assert "2 jobs failed because of it" in page
    page = await read(web, "/chain", id=last.id)
    assert "1 chain that its last job waited for is not completed" in page
    assert "Retry it alone" in page
    confirm = ""
    for chain, count in ((last, 3), (chains[0], 3), (blocker, 4)):
        page = await read(web, "/chain", id=chain.id)
        address = re.search(r'href="(/chain/retry-together[^"]*)"', page)
        assert address is not None
        confirm = (await web.get(unescape(address[1]))).text
        assert f"Retry {count} chains?" in confirm
    form = form_fields(confirm, "/chain/retry-together")
    reader = http(dashboard(harness, READ_ACCESS))
    assert (await reader.post("/chain/retry-together", data=form)).status_code == 403
    # One that fails between the page and the click is shown first.
    late = await harness.client.start_chain(number, 4, blockers=[chains[1]])
    async with harness.worker():
        await harness.client.wait([late], timeout=WAIT)
    answer = await web.post("/chain/retry-together", data=form)
    assert answer.status_code == 409
    assert "look at them, and confirm again" in answer.text
    assert "Retry 5 chains?" in answer.text
    assert (await blocker.refresh()).status is ChainStatus.FAILED
    answer = await web.post("/chain/retry-together", data=form_fields(answer.text, "/chain/retry-together"))
    assert "The chain was retried with what failed with it" in answer.text
    harness.handles(anything, echo, replace=True)
    async with harness.worker():
        await harness.client.wait([blocker, *chains, last, late], timeout=WAIT)
    assert {(await one.refresh()).status for one in (blocker, *chains, last, late)} == {ChainStatus.COMPLETED}
    [alone] = await fail_jobs(harness, 1)
    page = await read(web, "/chain", id=alone)
    assert ("retry-together" in page, 'class="primary">Retry</button>' in page) == (False, True)


async def test_a_cancelled_blocker_is_to_be_retried_first(harness: Harness, http: Http) -> None:
    """A cascade of retries leaves it as it is, so none is offered for it."""
    harness.handles(number, echo)
    blocker = await harness.client.start_chain(loop, 1)
    chain = await harness.client.start_chain(number, 1, blockers=[blocker])
    await harness.client.cancel_chain(blocker)
    async with harness.worker():
        await harness.client.wait([chain], timeout=WAIT)
    page = await read(http(dashboard(harness)), "/chain", id=chain.id)
    assert "1 chain that its last job waited for is cancelled" in page
    assert "retry it first" in page
    assert "retry-together" not in page


async def test_a_form_whose_write_fails_keeps_what_was_typed(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await harness.client.start_chain(number, 1)

    async def away(*args: object, **more: object) -> bool:
        raise StateUnavailableError("the server sends no answer")

    monkeypatch.setattr(harness.client, "complete_chain", away)
    web = http(dashboard(harness))
    answer = await web.post("/chain/complete", data={"id": chain.id, "type": "number", "output": "4711"})
    assert answer.status_code == 503
    assert "4711</textarea>" in answer.text
    assert answer.text.count('role="alert"') == 1


@pytest.mark.parametrize("reason", ["", "  "])
async def test_a_cancellation_without_a_reason_names_who_cancels(harness: Harness, http: Http, reason: str) -> None:
    web = http(dashboard(harness, Access(Action, principal="ada")))
    for path, form in (
        ("/chain/cancel", {}), ("/chains/selected", {"action": "cancel"}),
        ("/operations/start", {"action": "cancel", "type": "number"}),
    ):  # fmt: skip
        chain = await harness.client.start_chain(number, 1)
        answer = await web.post(path, data={"id": chain.id, "reason": reason, **form})
        assert answer.status_code == 303
        await harness.client.run_bulk_operations()
        error = (await chain.refresh()).error
        assert error is not None
        assert error.message == "cancelled by ada", path


@pytest.mark.parametrize(
    ("path", "query", "reason", "typed"),
    [
        ("/chains", {"attribute": "customer", "status": "open"}, "an attribute must be name=value", 'value="customer"'),
        ("/chains", {"since": "yesterday"}, "a time must be such as", 'value="yesterday"'),
        ("/chains", {"cursor": "x", "type": "text"}, "cursor", 'value="text"'),
        ("/jobs", {"before": "soon"}, "a time must be such as", 'value="soon"'),
        ("/failures", {"since": "soon"}, "a time must be such as", 'value="soon"'),
        ("/events", {"cursor": "x", "type": "text"}, "cursor", 'value="text"'),
        ("/operations", {"cursor": "x"}, "cursor", "<h1>Bulk operations</h1>"),
        ("/", {"sort": "x"}, "sort must be one of", "<h1>Overview</h1>"),
        ("/type", {"name": "anything", "span": "x"}, "span must be one of", "<h1>anything</h1>"),
    ],
)
async def test_a_filter_that_is_refused_is_shown_again_with_what_was_typed(
    local: Harness, http: Http, path: str, query: dict[str, str], reason: str, typed: str
) -> None:
    """It lists nothing, rather than everything."""
    [id] = await fail_jobs(local, 1)
    if path == "/events" and Capability.EVENTS not in local.state.capabilities:
        pytest.skip("the store has no event log")
    answer = await http(dashboard(local)).get(path, params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8")
    alert = re.search(r'<(?:p|small) [^>]*role="alert">(.+?)</', answer.text)
    assert alert is not None
    assert reason in unescape(alert[1])
    assert typed in answer.text
    assert (id in answer.text, "all that match" in answer.text) == (False, False)
    assert 'data-live=""' in answer.text


@pytest.mark.parametrize("prefix", ["", "/ops"])
async def test_a_selection_without_rows_is_the_list_again(local: Harness, http: Http, prefix: str) -> None:
    [failed] = await fail_jobs(local, 1)
    other = await local.client.start_chain(number, 1)
    app: Any = dashboard(local)
    web = http(Starlette(routes=[Mount(prefix, app)]) if prefix else app)
    query = {"action": "retry", "next": "/chains?status=failed"}
    answer = await web.get(f"{prefix}/chains/selected", params=query)
    assert answer.status_code == 400
    assert "no chain is selected: mark some in the list" in answer.text
    assert (failed in answer.text, other.id in answer.text) == (True, False)
    assert "Retry all that match" in answer.text
    assert form_fields(answer.text, f"{prefix}/chains/selected")["next"] == "/chains?status=failed"
    assert 'name="id" value' in (await web.get(f"{prefix}/chains/selected", params={**query, "next": "/jobs"})).text


async def test_a_type_that_schedules_start_and_no_worker_handles_has_a_warning(local: Harness, http: Http) -> None:
    await local.client.put_schedules([RecurringSchedule("nightly", number, 1, cron="0 3 * * *")])
    web = http(dashboard(local))
    for path, query in (("/", {}), ("/type", {"name": "number"})):
        page = re.sub(r"<[^>]*>", "", await read(web, path, **query))
        assert re.search(r"No (live )?worker handles (number|this type), which 1 schedule starts\.", page), path
    await local.client.start_chain(number, 1)
    web = http(dashboard(local))
    page = re.sub(r"<[^>]*>", "", await read(web, "/"))
    assert "No worker handles number, which has 1 ready job, and which 1 schedule starts." in page
    await local.client.pause_schedules(["nightly"])
    assert "schedule starts" not in await read(http(dashboard(local)), "/")


async def test_a_search_that_finds_nothing_says_what_can_be_searched_for(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 1, id="order-21")
    web = http(dashboard(local), follow_redirects=True)
    answer = await web.get("/search", params={"q": "order 21"})
    assert answer.status_code == 404
    assert "no chain, job, job type, worker, schedule or webhook is called 'order 21'" in unescape(answer.text)
    assert 'name="q" value="order 21"' in answer.text
    assert "A search finds what has exactly this id or name" in answer.text
    links = re.findall(r'href="(/search[^"]*)"', answer.text)
    assert links == ["/search?q=order-21", "/search?q=order%3D21"]
    assert (await web.get(links[0])).url.path == "/chain"
    assert (await web.get("/search")).status_code == 400


async def test_blockers_that_were_not_read_in_time_are_said_to_be(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = await local.client.start_chain(number, 1)
    chain = await local.client.start_chain(number, 1, blockers=[blocker])

    async def slow(job_id: str) -> Any:
        raise TimeoutError

    monkeypatch.setattr(local.client, "get_blockers", slow)
    for path in ("/job", "/chain"):
        page = await read(http(dashboard(local)), path, id=chain.id)
        there = page[page.index('<div data-region="blockers">') :]
        assert there.index("Not read in time.") < there.index('data-region="payloads"'), path


@pytest.mark.parametrize(
    ("status", "offered"),
    [("", ["retry", "cancel", "delete"]), ("open", ["cancel", "delete"]), ("failed", ["retry", "delete"]),
     ("completed", ["delete"])],
)  # fmt: skip
async def test_a_list_of_one_status_offers_what_can_be_done_with_it(
    local: Harness, http: Http, status: str, offered: list[str]
) -> None:
    await fail_jobs(local, 1)
    [done] = [await local.client.start_chain(number, 1)]
    await local.client.complete_chain(done, 1)
    await local.client.start_chain(number, 1)
    page = await read(http(dashboard(local)), "/chains", **({"status": status} if status else {}))
    assert re.findall(r'<button name="action" value="(\w+)"', page) == offered


async def test_a_notice_has_no_text_of_an_address(local: Harness, http: Http) -> None:
    web = http(dashboard(local))
    for due in ("tomorrow", "<b>", "2026-01-01", "9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"):
        page = await read(web, "/operations", notice="operation-started", due=due)
        assert "Workers carry it out.</p>" in page, due


async def test_the_question_before_a_change_by_filter_says_of_which_chains(local: Harness, http: Http) -> None:
    page = await read(http(dashboard(local)), "/operations/start", action="delete", type="number")
    question = re.sub(r"<[^>]*>", "", page[page.index("<h1>Delete") : page.index("Workers carry it out")])
    assert "Chains that are ✓completed type: number." in question


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_schedules_and_webhooks_are_searched_and_have_links(local: Harness, http: Http) -> None:
    names = ("rates", "rates-2", "nightly")
    await local.client.put_schedules([RecurringSchedule(name, number, 1, every=60.0) for name in names])
    for name in ("crm", "old"):
        await local.client.create_webhook(f"https://{name}.example/hook", description=f"of the {name}")
    web = http(dashboard(local), follow_redirects=True)

    async def listed(path: str, **query: str) -> list[str]:
        return re.findall(r'<tr id="(?:schedule|webhook)-([^"]+)"', await read(web, path, **query))

    assert await listed("/schedules", name="RATES") == ["rates", "rates-2"]
    assert await listed("/schedules", name="rates") == ["rates"], "a link leads to one"
    assert await listed("/schedules", type="text") == []
    assert 'href="/schedules?name=rates-2"' in await read(web, "/schedules")
    assert 'href="/schedules?name=rates-2"' in await read(web, "/type", name="number")
    assert str((await web.get("/search?q=rates-2")).url).endswith("/schedules?name=rates-2")
    assert len(await listed("/webhooks")) == 2
    id = ""
    for text in ("CRM.example", "of the crm"):
        [id] = await listed("/webhooks", name=text)
        assert (await local.client.get_webhook(id)).url == "https://crm.example/hook"
    for text in (id, "https://crm.example/hook"):
        assert str((await web.get("/search", params={"q": text})).url).endswith(f"/webhook?id={id}")
    assert "No webhooks match this filter." in await read(web, "/webhooks", name="nothing")


async def test_a_list_without_pages_says_what_it_leaves_out(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app", "pages.schedules", "pages.webhooks", "pages.workers"):
        monkeypatch.setattr(f"queuert.web.dashboard.{name}.MOST_ROWS", 1)
    await local.client.put_schedules([RecurringSchedule(name, number, 1, every=60.0) for name in ("a", "b")])
    for _ in range(2):
        await local.client.create_webhook("https://crm.example/hook")
    await local.client.pause_job_types(["number", "text"])
    store = await local.client._open_store()
    for name in ("w-1", "w-2"):
        await store.record_heartbeat(WorkerHeartbeat(name, name, "here", 1, "1", ("number",), 1, 0, 0.0), 60.0)
    web = http(dashboard(local))
    for path in ("/", "/types", "/workers", "/schedules", "/webhooks"):
        page = await read(web, path)
        assert "These are the first 1 of 2." in page, path


async def test_a_chain_reads_blockers_until_they_are_many(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains_page, "MOST_BLOCKERS", 2)
    get_blockers, read_of = local.client.get_blockers, []

    async def counted(job_id: str) -> Any:
        read_of.append(job_id)
        return await get_blockers(job_id)

    async def handler(attempt: Any) -> Outcome[Any]:
        if attempt.input == 3:
            return 3
        if attempt.input and not attempt.blockers:
            return attempt.wait_for(NewChain(number, 1), NewChain(number, 2))
        return attempt.continue_with(loop, attempt.input + 1)

    monkeypatch.setattr(local.client, "get_blockers", counted)
    local.handles(loop, handler)
    local.handles(number, echo)
    chain = await local.client.start_chain(loop, 0)
    async with local.worker():
        await local.client.wait([chain], timeout=WAIT)
    jobs = [job.id for job in (await local.client.list_chain_jobs(chain)).items]
    assert len(jobs) == 4
    page = await read(http(dashboard(local)), "/chain", id=chain.id)
    assert read_of == jobs[:-3:-1]
    assert "What its earlier jobs waited for is left out." in page


class Counted(list[Activity]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Activity]:
        self.times += 1
        return super().__iter__()


async def test_what_workers_did_is_gone_through_once(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of them."""
    did = Counted()

    async def activity(*arguments: Any, **named: Any) -> Counted:
        return did

    monkeypatch.setattr(workers_page, "activity", activity)
    store = await local.client._open_store()
    for name in ("w-1", "w-2", "w-3"):
        await store.record_heartbeat(WorkerHeartbeat(name, name, "here", 1, "1", ("number",), 1, 0, 0.0), 60.0)
    assert "w-3" in await read(http(dashboard(local)), "/workers")
    assert did.times == 1


@pytest.mark.parametrize(("key", "order"), [("workers", "ascending"), ("ready", "descending")])
async def test_a_sorted_column_says_how(local: Harness, http: Http, key: str, order: str) -> None:
    page = await read(http(dashboard(local)), "/types", sort=key)
    assert re.findall(r'aria-sort="(\w+)"', page) == [order]


# --- words and numbers ------------------------------------------------------------------------------------------------


async def test_a_job_has_one_number_of_attempts(harness: Harness, http: Http) -> None:
    """That of its failures and events; how many of them count is said besides."""

    async def handler(attempt: Any) -> Outcome[Any]:
        if attempt.number == 3:
            raise ValueError("no")
        return attempt.snooze(0)

    harness.handles(anything, handler)
    chain = await harness.client.start_chain(anything, 1, max_attempts=1)
    async with harness.worker():
        await harness.client.wait([chain], timeout=WAIT)
    job = await harness.client.get_job(chain.id)
    assert (job.attempt, job.uncounted, job.status) == (3, 2, JobStatus.FAILED)
    web = http(dashboard(harness))
    shown = '3 <span class="quiet">1 of 1 counted</span>'
    for path, query in (("/job", {"id": job.id}), ("/chain", {"id": job.id}), ("/jobs", {})):
        assert shown in await read(web, path, **query), path
    assert '<span class="quiet">\N{MULTIPLICATION SIGN} 3</span>' in await read(web, "/job", id=job.id)


async def test_ages_in_a_reason_go_on(harness: Harness, http: Http) -> None:
    chain = await harness.client.start_chain(number, 1)
    store = harness.state.async_store(max_connections=1)
    await store.open()
    await store.record_heartbeat(WorkerHeartbeat("w-1", "w-1", "here", 1, "1", ("number",), 1, 0, 0.0), 60.0)
    await store.aclose()
    page = await read(http(dashboard(harness)), "/chain", id=chain.id)
    why = page[page.index('<div class="why">') :]
    assert re.search(r'<li>[^<]*<time datetime="[^"]+">\d+ s ago</time>', why), why[:600]


async def test_a_warning_says_that_a_number_is_an_estimate(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts(**settings: Any) -> list[TypeCount]:
        return [TypeCount("number", JobStatus.READY, 12_345, 1.0, estimated=True)]

    monkeypatch.setattr(local.client, "count_jobs", counts)
    assert "which has ≈ 12,345 ready jobs" in await read(http(dashboard(local)), "/")


async def test_an_estimate_that_says_no_more_than_what_was_counted_says_so(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts(**settings: Any) -> list[TypeCount]:
        return [TypeCount("number", JobStatus.READY, EXACT + 1, 1.0, estimated=True)]

    monkeypatch.setattr(local.client, "count_jobs", counts)
    for path, query in (("/", {}), ("/types", {}), ("/type", {"name": "number"})):
        page = await read(http(dashboard(local)), path, **query)
        assert (">over 100</a>" in page, "≈ 101" in page) == (True, False)


async def test_no_more_slots_are_used_than_there_are(local: Harness, http: Http) -> None:
    """What a worker has claimed ahead waits for a free one."""
    store = await local.client._open_store()
    await store.record_heartbeat(WorkerHeartbeat("w-1", "w-1", "here", 1, "1", ("number",), 8, 26, 0.0), 60.0)
    web = http(dashboard(local))
    for path, query in (("/workers", {}), ("/worker", {"name": "w-1"}), ("/type", {"name": "number"})):
        page = await read(web, path, **query)
        assert '8 of 8 <span class="quiet">and 18 claimed ahead</span>' in page, path


async def test_running_jobs_that_are_more_than_slots_have_a_reason(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 1)
    store = await local.client._open_store()
    assert await store.claim(ClaimRequest({"number": 3_600.0}, 1, "gone", new_token()))
    assert "0 slots, others claimed ahead or left" in await read(http(dashboard(local)), "/")


async def test_a_rate_says_of_which_time_it_is(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 1)
    web = http(dashboard(local))
    assert "Rates are of the last five minutes" in await read(web, "/types")
    for path, query in (("/", {}), ("/type", {"name": "number"})):
        assert "<small>a minute, of the last 5</small>" in await read(web, path, **query)


async def test_the_values_of_charts_are_in_a_table(harness: Harness, http: Http) -> None:
    await fail_jobs(harness, 1)
    web = http(dashboard(harness))
    job = await read(web, "/jobs")
    id = re.findall(r'<tr id="row-([^"]+)"', job)[0]
    assert re.search(r'<details class="values".*?attempt 1 failed', await read(web, "/job", id=id), re.DOTALL)
    page = await read(web, "/type", name="anything")
    assert re.search(r"<td>\d{4}-\d\d-\d\d \d\d:\d\d UTC</td><td>0 finished, 1 failed or retried</td>", page), page
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


async def test_the_values_of_a_timeline_are_bounded(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_jobs(local, 1)
    [chain] = (await local.client.list_chains()).items
    web = http(dashboard(local))
    page = await read(web, "/job", id=chain.id)
    shown = len(re.findall(r'<tr id="value-job-', page))
    assert (shown > 1, "These are the last" in page) == (True, False)
    monkeypatch.setattr(charts_module, "MOST_VALUES", shown - 1)
    page = await read(web, "/job", id=chain.id)
    assert len(re.findall(r'<tr id="value-job-', page)) == shown - 1
    assert f"These are the last {shown - 1} of {shown}." in page


# --- refreshing -------------------------------------------------------------------------------------------------------


async def test_a_stream_that_opens_says_nothing_of_the_past(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    if Capability.EVENTS not in harness.state.capabilities:
        pytest.skip("the store has no event log")
    monkeypatch.setattr(live_module, "TICK", 0.01)
    newest, looks, looked = live_module.Pulse.newest, 0, asyncio.Event()

    async def counted(pulse: live_module.Pulse) -> Any:
        nonlocal looks
        looks += 1
        if looks > 5:
            looked.set()
        return await newest(pulse)

    monkeypatch.setattr(live_module.Pulse, "newest", counted)
    await harness.client.start_chain(number, 1)
    async with opened(DashboardApp(harness.client, access=everything)) as stream:
        assert await stream.next() == "ready"
        await in_time(looked.wait())
        assert stream.events.empty()
        await harness.client.start_chain(number, 2)
        assert await stream.next() == "changed"
