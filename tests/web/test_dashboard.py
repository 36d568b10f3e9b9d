"""The pages of the dashboard, and the changes that they ask for, on each store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from html import unescape
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from queuert import ChainStatus, JobStatus, JobType, JobTypes, Outcome, RecurringSchedule, RetryPolicy, after
from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.ids import new_token
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.limits import TypeTraits
from queuert.run_at import at
from queuert.schedules import Overlap, tick_id
from queuert.state.types import ClaimRequest
from queuert.web import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access, Action, WebApp, bearer_tokens
from queuert.web.dashboard import DashboardApp
from queuert.web.dashboard import app as app_module
from queuert.web.dashboard.app import CSP
from queuert.web.dashboard.formats import MAX_PAYLOAD
from queuert.web.dashboard.pages import shared
from queuert.web.dashboard.pages.shared import EXACT
from queuert.web.dashboard.routes import PAGES, Page
from queuert.web.dashboard.visit import Visit
from queuert.workers import WorkerHeartbeat, WorkerState
from tests.support.harness import Harness
from tests.support.job_types import anything, loop, number, text
from tests.support.waiting import WAIT
from tests.web.applications import Http

TOKEN = "operator-" + "0" * 20
HOSTILE = "</a> ../..\"'<script>alert(1)</script>&#x27;🎈%2F?#"
ONCE = RetryPolicy(max_attempts=1)


def dashboard(harness: Harness, access: Access = FULL_ACCESS, **settings: Any) -> DashboardApp:
    """A dashboard with the same access for all."""
    return DashboardApp(harness.client, access=lambda request: access, **settings)


async def read(web: httpx.AsyncClient, path: str, **query: str) -> str:
    """Read a page, which must be one."""
    answer = await web.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


async def fail_jobs(harness: Harness, *inputs: object, error: str = "the gateway is down") -> list[str]:
    """Run a chain for each input, and let it fail."""

    async def handler(attempt: Any) -> Outcome[Any]:
        raise ValueError(error)

    harness.handles(anything, handler, retry=ONCE, replace=True)
    chains = [await harness.client.start_chain(anything, one) for one in inputs]
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    return [chain.id for chain in chains]


def form_fields(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form of a page that leads there."""
    found = re.search(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert found is not None, page
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found[1])
    return {unescape(name): unescape(value) for name, value in fields}


async def test_an_operator_finds_failures_and_retries_those_with_one_error(harness: Harness, http: Http) -> None:
    down = await fail_jobs(harness, 1, 2)
    [wrong] = await fail_jobs(harness, 3, error="no such user")
    web = http(dashboard(harness, Access(Action, principal="ada")), follow_redirects=True)
    assert ">3</a>" in await read(web, "/")
    page = await read(web, "/failures")
    assert "<b>ValueError</b> the gateway is down" in page
    assert "All 3 failed chains" in page
    confirm = await read(web, "/failures/retry", **form_fields(page, "/failures/retry"))
    assert "Retry 2 failed chains?" in confirm
    for _ in range(2):
        answer = await web.post("/failures/retry", data=form_fields(confirm, "/failures/retry"))
        assert "The operation was started." in answer.text
        assert "ada" in answer.text
    assert len((await harness.client.list_bulk_operations()).items) == 1, "a form starts one"
    await harness.client.run_bulk_operations()
    statuses = [(await harness.client.get_chain(id)).status for id in (*down, wrong)]
    assert statuses == [ChainStatus.OPEN, ChainStatus.OPEN, ChainStatus.FAILED]
    assert "the gateway is down" not in await read(web, "/failures")
    assert "No chain has failed in this time." in await read(web, "/failures", before="2h")
    assert (await web.get("/failures", params={"since": "yesterday"})).status_code == 400


async def test_a_failed_chain_shows_its_error_and_its_attempts(harness: Harness, http: Http) -> None:
    [id] = await fail_jobs(harness, {"address": "<b>here</b>"})
    web = http(dashboard(harness), follow_redirects=True)
    page = await read(web, "/chain", id=id)
    assert "the gateway is down" in page
    assert "Traceback" in page
    assert "&lt;b&gt;here&lt;/b&gt;" in page
    assert 'class="b-failed"' in page
    job = await read(web, "/job", id=id)
    assert "attempt 1 failed" in job
    assert "States that the job was in: ready then running then failed" in job
    assert "holds the lease" not in job
    answer = await web.post("/chain/retry", data={"id": id})
    assert "The chain was retried" in answer.text
    assert (await harness.client.get_chain(id)).status is ChainStatus.OPEN


async def test_a_blocked_chain_says_what_it_waits_for(harness: Harness, http: Http) -> None:
    blocker = await harness.client.start_chain(number, 1)
    chain = await harness.client.start_chain(text, "a", blockers=[blocker])
    web = http(dashboard(harness), follow_redirects=True)
    page = await read(web, "/chain", id=chain.id)
    assert "waits for 1 open chain" in page
    assert "no live worker" in page.lower() or "no worker" in page.lower()
    assert blocker.id in page
    assert chain.id in await read(web, "/chain", id=blocker.id)
    confirm = await read(web, "/chain/cancel", id=blocker.id)
    assert "1 job waits for it" in confirm
    answer = await web.post("/chain/cancel", data={"id": blocker.id, "reason": "not needed"})
    assert "The chain was cancelled." in answer.text
    assert "not needed" in answer.text
    answer = await web.post("/chain/cancel", data={"id": blocker.id})
    assert "Nothing was cancelled" in answer.text


async def test_a_long_chain_shows_its_end_and_leads_to_its_beginning(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.web.dashboard.pages.chains.AROUND", 3)
    monkeypatch.setattr("queuert.web.dashboard.graph.MOST_JOBS", 2)
    monkeypatch.setattr("queuert.web.dashboard.pages.chains.MOST_JOBS", 2)

    async def handler(attempt: Any) -> Outcome[Any]:
        return attempt.continue_with(loop, attempt.input - 1) if attempt.input > 77_771 else 0

    harness.handles(loop, handler)
    chain = await harness.client.start_chain(loop, 77_774)
    async with harness.worker():
        await harness.client.wait([chain], timeout=WAIT)
    jobs = [job.id for job in (await harness.client.list_chain_jobs(chain)).items]
    assert len(jobs) == 4

    def shown(page: str) -> list[str]:
        return re.findall(r'<tr id="row-([^"]+)"', page)

    web = http(dashboard(harness))
    page = await read(web, "/chain", id=chain.id)
    assert shown(page) == jobs[1:]
    assert "These are the jobs 2 to 4 of 4." in page
    assert "2 earlier jobs are left out." in page
    assert "77774" in page
    older = re.search(r'href="(/chain\?[^"]*jobs=[^"]*)"', page)
    assert older is not None
    page = await read(web, unescape(older[1]))
    assert shown(page) == jobs[:1]
    assert "These are the jobs 1 to 1 of 4: later ones are left out, also above." in page
    newest = re.search(r'href="([^"]*)">Newest</a>', page)
    assert newest is not None
    assert shown(await read(web, unescape(newest[1]))) == jobs[1:]


async def test_jobs_and_events_of_a_long_chain_are_turned_apart(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.web.dashboard.pages.chains.AROUND", 2)
    monkeypatch.setattr("queuert.web.dashboard.pages.chains.EVENTS", 2)

    async def handler(attempt: Any) -> Outcome[Any]:
        return attempt.continue_with(loop, attempt.input - 1) if attempt.input > 1 else 0

    local.handles(loop, handler)
    chain = await local.client.start_chain(loop, 6)
    async with local.worker():
        await local.client.wait([chain], timeout=WAIT)
    web = http(dashboard(local))

    async def follow(page: str, label: str, number: int = 0) -> str:
        links = re.findall(rf'href="([^"]*)">{label}</a>', page)
        return await read(web, unescape(links[number]).partition("#")[0])

    def parts(page: str) -> tuple[str | None, list[str]]:
        said = re.search(r"These are the jobs [^.:]*", page)
        return said and said[0], re.findall(r'<tr id="row-(\d+-\d+)"', page)

    first = await read(web, "/chain", id=chain.id)
    older_jobs = await follow(first, "Older")
    shown, events = parts(await follow(older_jobs, "Show the events"))
    assert (shown, len(events)) == ("These are the jobs 3 to 4 of 6", 2)
    assert "2 later jobs are left out." in older_jobs
    with_events = await follow(first, "Show the events")
    later = await follow(with_events, "Older", 1)
    assert parts(later)[1] != parts(with_events)[1]
    # The events stay where they are while the jobs are turned, and the reverse.
    both = await follow(later, "Older", 0)
    assert parts(both) == ("These are the jobs 3 to 4 of 6", parts(later)[1])
    assert parts(await follow(both, "Older", 1))[0] == "These are the jobs 3 to 4 of 6"
    assert parts(await follow(both, "Newest")) == parts(later)


async def test_a_time_at_the_end_of_the_calendar_is_shown(harness: Harness, http: Http) -> None:
    """Where it is in no calendar, as east of Greenwich, it is shown in UTC."""
    chain = await harness.client.start_chain(number, 1, run_at=at(datetime(9999, 12, 31, 23, tzinfo=UTC)))
    web = http(dashboard(harness), cookies={"queuert_zone": "Asia/Tokyo"})
    for path in ("/job", "/chain"):
        page = await read(web, path, id=chain.id)
        assert " JST" in page
    assert 'title="9999-12-31 23:00:00.000 UTC"' in await read(web, "/job", id=chain.id)


async def test_a_form_sends_its_event_once(harness: Harness, http: Http) -> None:
    """Also if its button is clicked twice."""
    chain = await harness.client.start_chain(number, 1)
    web = http(dashboard(harness), follow_redirects=True)
    path = f"/chain/send-event?id={chain.id}"
    first, other = [form_fields(await read(web, path), "/chain/send-event") for _ in range(2)]
    assert first["event_id"] != other["event_id"]
    refused = False
    for payload in ("1", "1", "2"):
        answer = await web.post("/chain/send-event", data={"name": "approved", "payload": payload, **first})
        sent = "The event was sent to the chain." in answer.text
        assert (sent, "This form has sent its event already" in answer.text) == (
            payload == "1" and not refused,
            refused,
        )
        refused = True
    assert not await harness.client.send_event(chain, "approved", 1, id=first["event_id"]), "it was kept before"
    assert await harness.client.send_event(chain, "approved", 1, id=other["event_id"])


async def test_a_chain_is_deleted_after_a_question(harness: Harness, http: Http) -> None:
    chain = await harness.client.start_chain(number, 1)
    web = http(dashboard(harness), follow_redirects=True)
    assert "cannot be undone" in await read(web, "/chain/delete", id=chain.id)
    assert "The chain was deleted." in (await web.post("/chain/delete", data={"id": chain.id})).text
    assert (await web.post("/chain/delete", data={"id": chain.id})).status_code == 404
    assert (await web.get("/chain", params={"id": chain.id})).status_code == 404


async def test_a_scheduled_job_runs_now(harness: Harness, http: Http) -> None:
    chain = await harness.client.start_chain(number, 1, run_at=after(hours=1))
    web = http(dashboard(harness), follow_redirects=True)
    assert "Run now" in await read(web, "/job", id=chain.id)
    assert "The job is due now." in (await web.post("/job/trigger", data={"id": chain.id})).text
    assert (await harness.client.get_job(chain.id)).status is JobStatus.READY
    await chain.cancel()
    assert (await web.post("/job/trigger", data={"id": chain.id})).status_code == 409


async def test_lists_are_filtered_and_turned(harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("chains", "jobs"):
        monkeypatch.setattr(f"queuert.web.dashboard.pages.{module}.PAGE", 2)
    chains = [await harness.client.start_chain(number, n, attributes={"user": f"u{n}"}) for n in range(3)]
    other = await harness.client.start_chain(text, "a")
    web = http(dashboard(harness))
    for path in ("/chains", "/jobs"):
        page = await read(web, path, type="number")
        assert chains[2].id in page
        assert chains[0].id not in page
        assert other.id not in page
        older = re.search(rf'href="({path}\?[^"]*cursor[^"]*)"', page)
        assert older is not None
        last = await read(web, unescape(older[1]))
        assert chains[0].id in last
        assert "Older" not in last
        assert "Newest" in last
    assert chains[1].id in await read(web, "/chains", attribute="user=u1", status="open")
    assert "No chains match this filter." in await read(web, "/chains", attribute="user=nobody")
    assert (await web.get("/chains", params={"attribute": "user"})).status_code == 400
    assert (await web.get("/chains", params={"status": "lost"})).status_code == 422
    assert (await web.get("/chains", params={"cursor": "wrong"})).status_code == 400


async def test_a_form_with_an_error_changes_nothing(harness: Harness, http: Http) -> None:
    chain = await harness.client.start_chain(number, 1, run_at=after(hours=1))
    due = (await harness.client.get_job(chain.id)).scheduled_at
    web = http(dashboard(harness), follow_redirects=True)
    for priority, status in (("high", 400), ("²", 400), ("--5", 400), ("1.5", 400), ("999999999", 422)):
        form = {"id": chain.id, "run_at": "2030-01-01T00:00", "priority": priority}
        answer = await web.post("/chain/change", data=form)
        assert (answer.status_code, "the priority must be" in answer.text or "priority must" in answer.text) == (
            status, True,
        ), answer.text  # fmt: skip
        assert (await harness.client.get_job(chain.id)).scheduled_at == due
    answer = await web.post("/chain/change", data={"id": chain.id, "run_at": " 2030-01-01T00:00", "priority": " -7 "})
    assert "The waiting job was changed." in answer.text
    job = await harness.client.get_job(chain.id)
    assert (job.scheduled_at.year, job.priority) == (2030, -7)


async def test_a_form_that_is_refused_is_shown_again_with_what_was_typed(local: Harness, http: Http) -> None:
    """Without refreshing: a read of its address would be another page."""
    chain = await local.client.start_chain(number, 1, run_at=after(hours=1))
    [failed] = await fail_jobs(local, 1)
    web = http(dashboard(local))
    for path, form, status, reason, typed in (
        ("/chain/change", {"id": chain.id, "run_at": "2030-01-01T00:00", "priority": "high"}, 400,
         "the priority must be", ('value="2030-01-01T00:00"', 'value="high"')),
        ("/chain/complete", {"id": chain.id, "type": "number", "output": "{half"}, 400,
         "output must be JSON", (">{half</textarea>",)),
        ("/chain/complete", {"id": chain.id, "type": "number", "output": '"a"'}, 422, "", ("&#34;a&#34;</textarea>",)),
        ("/chain/edit", {"id": failed, "input": "[1,"}, 400, "input must be JSON", (">[1,</textarea>",)),
        ("/chain/send-event", {"id": chain.id, "name": "approved", "payload": "{<b>", "event_id": "its-own"}, 400,
         "payload must be JSON", ('value="approved"', ">{&lt;b&gt;</textarea>", 'value="its-own"')),
        ("/chains/selected", {"id": chain.id, "action": "retry"}, 409, chain.id, ("Retry 1 chain",)),
    ):  # fmt: skip
        answer = await web.post(path, data=form)
        assert answer.status_code == status, (path, answer.text)
        alert = re.search(r'<(?:p|small) [^>]*role="alert">(.+?)</', answer.text)
        assert alert is not None, answer.text
        assert reason in alert[1]
        assert [one for one in typed if one not in answer.text] == [], path
        assert 'data-live=""' in answer.text
        assert form_fields(answer.text, path)["id"] == form["id"]
    # Others, and those whose page cannot be made, are answered with the page of the error.
    for path, form, status in (
        ("/chain/retry", {"id": chain.id}, 409),
        ("/chain/cancel", {"id": "nobody"}, 404),
        ("/chain/cancel", {}, 400),
    ):
        answer = await web.post(path, data=form)
        assert (answer.status_code, answer.text.count('role="alert"')) == (status, 1), answer.text
        assert 'data-live=""' in answer.text


def test_a_form_and_its_page_need_the_same_action() -> None:
    actions: dict[str, set[Action]] = {}
    for page in PAGES:
        actions.setdefault(page.path, set()).add(page.action)
    assert [path for path, found in actions.items() if len(found) > 1] == []


NO_TIMES = (
    "yesterday?", "2026-13-40", "²h", "٣d", "999999d", "0001-01-01T00:00+14:00", "9999-12-31T23:00-10:00", "1e3h",
    "-1h", "2026-11-25T03:00+99:00", "24:00", "h",
)  # fmt: skip


@pytest.mark.parametrize("time", NO_TIMES)
async def test_a_time_that_is_none_says_what_must_be_there(local: Harness, http: Http, time: str) -> None:
    chain = await local.client.start_chain(number, 1, run_at=after(hours=1))
    web = http(dashboard(local))
    answers = [
        await web.get(path, params={"type": "number", "action": "cancel", name: time})
        for path in ("/chains", "/jobs", "/failures", "/failures/retry", "/operations/start")
        for name in ("since", "before")
    ]
    answers.append(await web.post("/chain/change", data={"id": chain.id, "run_at": time}))
    assert {(one.status_code, "a time must be such as" in one.text) for one in answers} == {(400, True)}


@pytest.mark.parametrize("error", ["ends with white space \t ", "a line\rand another", "\x1c", "", " \xa0 no answer"])
async def test_failures_are_found_by_any_error(local: Harness, http: Http, error: str) -> None:
    """A form does not send white space at the ends of a text as it was, nor a lone carriage return."""
    [id] = await fail_jobs(local, 1, error=error)
    web = http(dashboard(local), follow_redirects=True)
    fields = form_fields(await read(web, "/failures"), "/failures/retry")
    fields = {name: value.replace("\r", "\n") for name, value in fields.items()}  # As a browser reads them.
    assert "Retry 1 failed chain?" in await read(web, "/failures/retry", **fields)
    await web.post("/failures/retry", data=fields)
    await local.client.run_bulk_operations()
    assert (await local.client.get_chain(id)).status is ChainStatus.OPEN


async def test_all_chains_of_a_filter_are_cancelled_by_an_operation(harness: Harness, http: Http) -> None:
    mine = [await harness.client.start_chain(number, n, attributes={"user": "17"}) for n in range(3)]
    other = await harness.client.start_chain(number, 4)
    web = http(dashboard(harness, Access(Action, principal="ada")), follow_redirects=True)
    page = await read(web, "/chains", status="open", attribute="user=17")
    confirm = await read(web, "/operations/start", **form_fields(page, "/operations/start"))
    assert "Cancel 3 chains?" in confirm
    answer = await web.post("/operations/start", data=form_fields(confirm, "/operations/start"))
    assert "The operation was started." in answer.text
    assert "ada" in answer.text
    while await harness.client.run_bulk_operations():
        pass
    assert [(await one.refresh()).status for one in mine] == [ChainStatus.CANCELLED] * 3
    assert (await other.refresh()).status is ChainStatus.OPEN
    refused = await web.post("/operations/start", data={"action": "cancel", "status": "failed"})
    assert refused.status_code == 422
    assert (await web.post("/operations/start", data={"action": "drop"})).status_code == 400
    reader = http(dashboard(harness, Access([Action.READ, Action.RETRY])))
    assert (await reader.post("/operations/start", data={"action": "cancel"})).status_code == 403


async def test_a_type_is_paused_and_resumed(harness: Harness, http: Http) -> None:
    await harness.client.start_chain(number, 1)
    web = http(dashboard(harness, Access(Action, principal="ada")), follow_redirects=True)
    assert "No worker handles" in await read(web, "/")
    answer = await web.post("/types/pause", data={"type": "number", "reason": "<down>"})
    assert "paused by ada: &lt;down&gt;" in answer.text
    [paused] = await harness.client.list_paused_job_types()
    assert (paused.type, paused.by, paused.reason) == ("number", "ada", "<down>")
    assert "was paused" in await read(web, "/")
    await web.post("/types/resume", data={"type": "number"})
    assert await harness.client.list_paused_job_types() == []


async def test_a_type_that_clients_complete_misses_no_worker(harness: Harness, http: Http) -> None:
    chain = await harness.client.start_chain(number, 1)
    web = http(dashboard(harness))
    assert "No worker handles" in await read(web, "/")
    for allowed, says in ((None, None), (3_600.0, "They are overdue after 1.0 h."), (0.001, "after 1 ms.")):
        await record(harness, {"number": allowed})
        overview = await read(web, "/")
        assert "No worker handles" not in overview
        assert ("has waited for a client for" in overview) == (allowed == 0.001)
        assert ">completed by clients</span>" in await read(web, "/types")
        page = await read(web, "/type", name="number")
        assert "Its jobs wait until a client completes them." in page
        assert ("They are overdue after" in page) == (says is not None)
        assert says is None or says in page
        assert ("and is overdue." in page) == (allowed == 0.001)
        job = await read(web, "/job", id=chain.id)
        assert ("<dt>Overdue</dt>" in job) == (allowed is not None)
        assert ('<dt>Overdue</dt><dd class="late">' in job) == (allowed == 0.001)


async def record(harness: Harness, client_types: Mapping[str, float | None]) -> None:
    """A worker has told that clients complete these types."""
    traits = tuple(TypeTraits(type, True, seconds) for type, seconds in client_types.items())
    beat = WorkerHeartbeat("w", "w", "here", 1, "1", (), 1, 0, 0.0, traits=traits)
    store = harness.state.async_store(max_connections=1)
    await store.open()
    await store.record_heartbeat(beat, 60.0)
    await store.aclose()


async def test_schedules_are_paused_resumed_and_run(harness: Harness, http: Http) -> None:
    await harness.client.put_schedules([RecurringSchedule("nightly", number, 1, cron="0 3 * * *")])
    web = http(dashboard(harness), follow_redirects=True)
    assert "0 3 * * *" in await read(web, "/schedules")
    assert "The schedule is paused." in (await web.post("/schedules/pause", data={"name": "nightly"})).text
    assert (await harness.client.list_schedules())[0].paused
    assert "The schedule is resumed." in (await web.post("/schedules/resume", data={"name": "nightly"})).text
    assert "The schedule was run now." in (await web.post("/schedules/run", data={"name": "nightly"})).text
    assert (await web.post("/schedules/pause", data={"name": "unknown"})).status_code == 404


async def test_a_form_runs_its_schedule_once(harness: Harness, http: Http) -> None:
    web = http(dashboard(harness))
    form: dict[str, str] = {}
    for overlap in Overlap:
        await harness.client.put_schedules([RecurringSchedule("nightly", number, 1, every=86_400.0, overlap=overlap)])
        form = form_fields(await read(web, "/schedules"), "/schedules/run")
        answers = [await web.post("/schedules/run", data=form) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [303, 303], overlap
        [first, again] = [answer.headers["location"].partition("&notice=") for answer in answers]
        assert first[0] == again[0], "a form starts one"
        assert (first[2], again[2]) == ("schedule-run", "schedule-run-before")
        assert "This form has started this chain already" in await read(web, answers[1].headers["location"])
        [chain] = (await harness.client.list_chains(statuses=[ChainStatus.OPEN])).items
        await harness.client.cancel_chain(chain)
    old = {**form, "at": "2020-01-01T00:00:00+00:00"}
    assert (await web.post("/schedules/run", data=old)).status_code == 409


async def test_a_form_that_is_made_at_a_tick_runs_its_schedule(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a chain beside that of the tick."""
    await harness.client.put_schedules([RecurringSchedule("often", number, 1, every=1.0)])
    tick = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setattr(app_module, "Visit", partial(Visit, now=tick))
    web = http(dashboard(harness))
    form = form_fields(await read(web, "/schedules"), "/schedules/run")
    answer = await web.post("/schedules/run", data=form)
    assert (answer.status_code, answer.headers["location"].rpartition("=")[2]) == (303, "schedule-run")
    [chain] = (await harness.client.list_chains()).items
    assert chain.id != tick_id("often", tick)


async def test_a_worker_and_what_it_holds(harness: Harness, http: Http) -> None:
    async def handler(attempt: Any) -> Outcome[Any]:
        web = http(dashboard(harness))
        job = await harness.client.get_job(attempt.job_id)
        assert job.holder is not None
        assert job.id in await read(web, "/worker", name=job.holder)
        assert "holds the lease, which expires" in await read(web, "/job", id=job.id)
        return await read(web, "/workers")

    harness.handles(anything, handler, retry=ONCE)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, 1)
        page = await chain.result(WAIT)
    assert "1 of" in page or "0 of" in page
    assert "no heartbeat in the last minute" in await read(http(dashboard(harness)), "/worker", name="vanished")


async def claimed(harness: Harness, type: str, holder: str) -> None:
    """Have somebody take a job of a type."""
    store = harness.state.async_store(max_connections=1)
    await store.open()
    assert await store.claim(ClaimRequest({type: 3_600.0}, 1, holder, new_token()))
    await store.aclose()


async def test_the_oldest_running_jobs_are_searched_for_workers_that_have_vanished(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LOOKED_AT", 1)
    await harness.client.start_chain(number, 1)
    await claimed(harness, "number", "lost-1")
    await harness.client.start_chain(text, "a")
    await claimed(harness, "text", "busy-2")
    web = http(dashboard(harness))
    assert "lost-1</a> has vanished" in await read(web, "/")
    assert ">lost-1</a>" in await read(web, "/workers")
    assert "vanished</span>" in await read(web, "/worker", name="lost-1")
    # On the page of a type it is the jobs of this type.
    assert ">busy-2</a>" in await read(web, "/type", name="text")


async def test_a_page_says_which_running_jobs_it_shows(
    harness: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.web.dashboard.pages.types.SHOWN", 1)
    for n in range(3):
        await harness.client.start_chain(number, n)
        await claimed(harness, "number", f"worker-{n}")
        app = dashboard(harness)
        running = re.search(r'Running now <span class="quiet">(.*?)</span>', await read(http(app), "/type?name=number"))
        assert running is not None
        assert running[1] == ("1", "the 1 created first of 2", "the 1 created first of 3")[n]
    monkeypatch.setattr(shared, "LOOKED_AT", 2)
    web = http(dashboard(harness))
    assert "the 1 created first of 2 or more" in await read(web, "/type", name="number")
    assert "running jobs that were created first were looked at" in await read(web, "/workers")


async def test_running_jobs_are_kept_without_their_payloads(harness: Harness, http: Http) -> None:
    await harness.client.start_chain(anything, "a large input")
    await claimed(harness, anything.name, "worker")
    app = dashboard(harness)
    page = await read(http(app), "/workers")
    assert "holds 1 job" in page
    [database] = app.databases.values()
    kept = str(database.shared._kept)
    assert ("holder='worker'" in kept, "a large input" in kept) == (True, False)


async def test_a_client_that_runs_batches_is_no_worker_that_has_vanished(harness: Harness, http: Http) -> None:
    holder = "client-17-0123456789ab"
    operation = await harness.client.start_bulk_operation("cancel", requested_by="ada")
    assert "No worker handles" in await read(http(dashboard(harness)), "/")
    store = harness.state.async_store(max_connections=1)
    await store.open()
    beat = WorkerHeartbeat("w", "w", "here", 1, "1", ("number",), 1, 0, 0.0)
    await store.record_heartbeat(beat, 60.0)
    await store.aclose()
    web = http(dashboard(harness))
    assert "No worker handles" not in await read(web, "/")
    await claimed(harness, BULK_OPERATION_TYPE, holder)
    web = http(dashboard(harness))
    for path in ("/", "/workers", f"/worker?name={holder}", f"/job?id={operation.id}"):
        page = await read(web, path)
        assert "vanished" not in page.replace("those that have vanished and hold leases", ""), path
        assert "No worker handles" not in page
    assert "No live worker handles" not in await read(web, "/type", name=BULK_OPERATION_TYPE)
    assert ">w</a>" in await read(web, "/type", name=BULK_OPERATION_TYPE)


async def test_a_type_whose_only_worker_is_stopping(harness: Harness, http: Http) -> None:
    await harness.client.start_chain(number, 1)
    store = harness.state.async_store(max_connections=1)
    await store.open()
    beat = WorkerHeartbeat("w", "w", "here", 1, "1", ("number",), 1, 0, 0.0, state=WorkerState.STOPPING)
    await store.record_heartbeat(beat, 60.0)
    await store.aclose()
    web = http(dashboard(harness))
    assert "No worker handles" in await read(web, "/")
    page = await read(web, "/type", name="number")
    assert "No live worker handles this type" in page
    # It is shown all the same, with its state.
    assert ">w</a>" in page
    assert "stopping" in page


async def test_ids_and_texts_may_be_anything(harness: Harness, http: Http) -> None:
    for id in (HOSTILE, "..", ".", "a/b"):
        await harness.client.start_chain(text, HOSTILE, id=id, attributes={"note": HOSTILE})
    web = http(dashboard(harness, environment="<prod>"), follow_redirects=True)
    for path in ("/", "/chains", "/jobs"):
        page = await read(web, path)
        assert "<script>alert" not in page
        assert "&lt;prod&gt;" in page
    links = {unescape(link) for link in re.findall(r'href="(/chain\?[^"]*)"', await read(web, "/chains"))}
    assert len(links) == 4
    for link in links:
        assert "<script>alert" not in await read(web, link)
    for id in (HOSTILE, "..", ".", "a/b"):
        answer = await web.get("/search", params={"q": id})
        assert answer.status_code == 200
        assert answer.url.params["id"] == id
    missing = await web.get("/search", params={"q": HOSTILE + "x"})
    assert missing.status_code == 404
    assert "<script>alert" not in missing.text


async def test_payloads_are_shown_only_with_their_action(local: Harness, http: Http) -> None:
    [id] = await fail_jobs(local, "secret-input", error="secret-error")
    web = http(dashboard(local, READ_ACCESS))
    paths = ("/", "/chains", "/chain", "/jobs", "/job", "/failures", "/events")
    pages = [await read(web, path, id=id) for path in paths]
    assert not [page for page in pages if "secret" in page]
    assert "read_payloads" in pages[2]
    redacting = http(dashboard(local, redact=lambda job_type, payload: {"type": job_type}))
    page = await read(redacting, "/job", id=id)
    assert "secret-input" not in page
    assert "&#34;type&#34;: &#34;anything&#34;" in page
    edited = await read(redacting, "/chain/edit", id=id)
    assert "secret-input" not in edited
    assert "The input is hidden here" in edited

    def emptied(job_type: str, payload: Any) -> Any:
        payload.clear()
        return payload

    [of_a_list] = await fail_jobs(local, ["secret-input"])
    in_place = http(dashboard(local, redact=emptied))
    assert "The input is hidden here" in await read(in_place, "/chain/edit", id=of_a_list)
    shown = await read(http(dashboard(local, redact=lambda job_type, payload: payload)), "/chain/edit", id=id)
    assert "secret-input" in shown


async def test_why_a_chain_waits_shows_no_error_without_payloads(local: Harness, http: Http) -> None:
    async def handler(attempt: Any) -> Outcome[Any]:
        raise ValueError("secret-error")

    local.handles(anything, handler, retry=RetryPolicy(initial_delay=300.0))
    chain = await local.client.start_chain(anything, 1)
    parent = await local.client.start_chain(text, "a", blockers=[chain])
    async with local.worker():
        async for state in chain.watch(timeout=WAIT):
            if state.last_error is not None:
                break
    for id in (chain.id, parent.id):
        assert "secret-error" in await read(http(dashboard(local)), "/chain", id=id)
        page = await read(http(dashboard(local, READ_ACCESS)), "/chain", id=id)
        assert "after attempt 1 failed" in page.lower()
        assert "secret-error" not in page


async def test_a_large_payload_is_cut(local: Harness, http: Http) -> None:
    chain = await local.client.start_chain(anything, "x" * (2 * MAX_PAYLOAD))
    page = await read(http(dashboard(local)), "/chain", id=chain.id)
    assert "65,538 more characters" in page
    assert page.count("x") < 2 * MAX_PAYLOAD


PARAMETERS = {"id": "one", "name": "one", "type": "one", "action": "retry", "q": "one"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.method} {page.path}")
async def test_each_page_needs_its_action(local: Harness, http: Http, page: Page) -> None:
    for access in (NO_ACCESS, Access([one for one in Action if one != page.action])):
        web = http(dashboard(local, access))
        answer = await web.request(page.method, page.path, params=PARAMETERS)
        assert answer.status_code == 403, answer.text
        assert page.action in answer.text
    closed = http(DashboardApp(local.client))
    assert (await closed.request(page.method, page.path, params=PARAMETERS)).status_code == 403


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "POST"], ids=lambda page: page.path)
async def test_a_page_of_another_site_changes_nothing(local: Harness, http: Http, page: Page) -> None:
    web = http(dashboard(local))
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.test"}):
        answer = await web.post(page.path, params=PARAMETERS, headers=headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)


async def test_each_answer_has_the_headers_that_protect_it(local: Harness, http: Http) -> None:
    web = http(dashboard(local))
    for path in ("/", "/chains", "/nothing", "/chain?id=missing", "/login"):
        answer = await web.get(path)
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son[a-z]+=|javascript:", answer.text)
    assert (await web.get("/static/dashboard.css")).status_code == 200
    assert (await web.get("/static/../app.py")).status_code == 404
    assert (await web.get("/static/%2e%2e%2fapp.py")).status_code == 404


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"id=" + b"x" * 70_000, {"Content-Type": "application/x-www-form-urlencoded"}, 413),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"id=%ff", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ("id=é".encode(), {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"", {}, 400),
    ],
)
async def test_a_form_that_is_not_valid(
    local: Harness, http: Http, content: bytes, headers: dict[str, str], status: int
) -> None:
    answer = await http(dashboard(local)).post("/chain/retry", content=content, headers=headers)
    assert answer.status_code == status


async def test_a_browser_logs_in_with_a_token(local: Harness, http: Http) -> None:
    access = bearer_tokens({TOKEN: FULL_ACCESS})
    web = http(DashboardApp(local.client, access=access))
    answer = await web.get("/chains?status=open")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fchains%3Fstatus%3Dopen")
    assert 'value="/chains?status=open"' in (await web.get(answer.headers["location"])).text
    wrong = await web.post("/login", data={"token": "wrong", "next": "/"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    answer = await web.post("/login", data={"token": TOKEN, "next": "/chains?status=open"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/chains?status=open")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert "Log out" in await read(web, "/chains")
    # The cookie stands for the token in the interface as well, and no longer once the token is changed.
    api = http(WebApp(local.client, access=access), cookies=dict(web.cookies))
    assert (await api.get("/chains")).status_code == 200
    changed = http(
        DashboardApp(local.client, access=bearer_tokens({TOKEN + "1": FULL_ACCESS})), cookies=dict(web.cookies)
    )
    assert (await changed.get("/")).status_code == 303
    await web.post("/logout")
    assert (await web.get("/")).status_code == 303


@pytest.mark.parametrize(
    ("outer", "mount"), [("", ""), ("/outer", ""), ("", "/ops/queue"), ("/outer", "/ops/queue"), ("/chain", "")]
)
async def test_a_login_leads_back_behind_any_prefix(local: Harness, http: Http, outer: str, mount: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = DashboardApp(local.client, access=bearer_tokens({TOKEN: FULL_ACCESS}))
    web = http(Starlette(routes=[Mount(mount, app)]) if mount else app, headers={"X-Forwarded-Prefix": outer})
    for path in ("/chains?status=open", "/chain?id=a%2Fb%25", "/"):
        answer = await web.get(mount + path)
        place = answer.headers["location"].removeprefix(outer)
        assert place.startswith(f"{mount}/login?next=")
        fields = form_fields((await web.get(place)).text, f"{outer}{mount}/login")
        answer = await web.post(f"{mount}/login", data={"token": TOKEN, **fields})
        assert answer.headers["location"] == f"{outer}{mount}{path}"
        web.cookies.clear()


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.test"}])
async def test_another_site_logs_nobody_in_or_out(local: Harness, http: Http, headers: dict[str, str]) -> None:
    web = http(DashboardApp(local.client, access=bearer_tokens({TOKEN: FULL_ACCESS})))
    answer = await web.post("/login", data={"token": TOKEN}, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert (await web.post("/login", data={"token": TOKEN})).status_code == 303
    answer = await web.post("/logout", headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert (await web.get("/")).status_code == 200


async def test_a_browser_that_tells_no_site_logs_in(local: Harness, http: Http) -> None:
    """As over plain HTTP: it tells the origin, if the page lets it."""
    web = http(DashboardApp(local.client, access=bearer_tokens({TOKEN: FULL_ACCESS})))
    page = await web.get("/login")
    assert page.headers["referrer-policy"] == "same-origin"
    origin = f"{page.request.url.scheme}://{page.request.headers['host']}"
    answer = await web.post("/login", data={"token": TOKEN}, headers={"Origin": origin})
    assert (answer.status_code, "set-cookie" in answer.headers) == (303, True)


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        (DashboardApp, "GET", "/chains"), (DashboardApp, "GET", "/live"), (DashboardApp, "POST", "/preferences"),
        (DashboardApp, "POST", "/chain/retry"), (WebApp, "GET", "/chains"), (WebApp, "GET", "/events"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [401, 419])
async def test_the_headers_of_a_refusal_of_the_application_are_sent(
    local: Harness, http: Http, kind: type[Any], method: str, path: str, status: int
) -> None:
    """By one a browser is told to ask for a password. A status of the application's own has no words."""

    def access(request: Any) -> Access:
        raise HTTPException(status, "no", {"WWW-Authenticate": 'Basic realm="queue"'})

    answer = await http(kind(local.client, access=access)).request(method, path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (status, 'Basic realm="queue"')


async def test_a_store_that_is_away_is_back_in_a_second(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: Any, **named: Any) -> Any:
        raise StateUnavailableError("it is away")

    monkeypatch.setattr(local.client, "get_chain", away)
    answer = await http(dashboard(local)).get("/chain", params={"id": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_page_says_that_it_takes_no_form(local: Harness, http: Http) -> None:
    answer = await http(dashboard(local)).post("/chains")
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert "this address must not be used with POST" in answer.text


async def test_json_that_is_nested_too_deep_is_an_error_of_the_form(local: Harness, http: Http) -> None:
    [id] = await fail_jobs(local, 1)
    web = http(dashboard(local))
    for wrong in ("[" * 20_000, "NaN", "1e400"):
        answer = await web.post("/chain/edit", data={"id": id, "input": wrong})
        assert answer.status_code == 400
        assert "input must be JSON" in answer.text


@pytest.mark.parametrize("place", ["https://evil.test", "//evil.test", "/\\evil.test", "evil", ""])
async def test_a_login_leads_to_no_other_site(local: Harness, http: Http, place: str) -> None:
    web = http(DashboardApp(local.client, access=bearer_tokens({TOKEN: FULL_ACCESS})))
    answer = await web.post("/login", data={"token": TOKEN, "next": place})
    assert answer.headers["location"] == "/"


async def test_a_prefix_is_in_all_links(local: Harness, http: Http) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    chain = await local.client.start_chain(number, 1)
    mounted = Starlette(routes=[Mount("/ops/queue", dashboard(local))])
    web = http(mounted, headers={"X-Forwarded-Prefix": "/outer"})
    for path in ("/ops/queue/", "/ops/queue/chains", f"/ops/queue/chain?id={chain.id}"):
        page = await read(web, path)
        links = re.findall(r'(?:href|action|src)="([^"#]+)"', page)
        assert links
        assert not [link for link in links if not link.startswith("/outer/ops/queue/")]
    answer = await web.post("/ops/queue/chain/cancel", data={"id": chain.id})
    assert answer.headers["location"].startswith("/outer/ops/queue/chain?")


async def test_jobs_of_all_types_are_counted_once_for_all_who_ask(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, counted = local.client.count_jobs, []

    async def counting(**settings: Any) -> Any:
        counted.append(settings)
        return await count(**settings)

    monkeypatch.setattr(local.client, "count_jobs", counting)
    monkeypatch.setattr(shared, "COUNTS_AGE", 3_600.0)  # As long as it takes to read three pages here.
    web = http(dashboard(local))
    for _ in range(3):
        await read(web, "/")
    assert counted == [{"exact_up_to": EXACT}]


def test_a_client_must_be_async() -> None:
    with pytest.raises(ConfigurationError, match="must be an AsyncClient, got JobTypes"):
        DashboardApp(JobTypes(JobType("one", input=int, output=int)))  # type: ignore[arg-type]
