"""Chains over HTTP: start, read, wait, change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queuert import Attempt, JobStatus, JobType, JobTypes, Keep, Retention, RetryPolicy, Unrecoverable
from queuert.cli import main
from queuert.errors import StateUnavailableError
from queuert.state.sqlite import SQLiteState
from queuert.state.types import PruneRequest
from queuert.web import FULL_ACCESS, Access, Action, WebApp
from queuert.web.dashboard import DashboardApp
from tests.support.harness import Harness
from tests.support.job_types import echo, number, order
from tests.support.waiting import until
from tests.web.applications import Http, app_of, problem

HOSTILE_IDS = ("a/b", "a%2Fb", "..", ".", "a b", "ä€😀", "a/result", "?x=1#y", "%", "a\\b", "x;y=1", "-", "a/", "/")


async def test_a_chain_is_started_read_and_awaited(harness: Harness, http: Http) -> None:
    harness.handles(order, echo)
    web = http(app_of(harness.client))
    started = await web.post("/chains", json={"type": "order", "input": {"name": "tea"}, "attributes": {"user": 17}})
    assert started.status_code == 201
    chain = started.json()
    assert (chain["status"], chain["type"], chain["attributes"]) == ("open", "order", {"user": "17"})
    assert started.headers["location"] == chain["links"]["chain"] == f"/chains/{chain['id']}"
    early = await web.get(chain["links"]["result"])
    assert (early.status_code, early.json(), early.headers["retry-after"]) == (
        202, {"id": chain["id"], "status": "open"}, "1",
    )  # fmt: skip
    async with harness.worker():
        result = await web.get(chain["links"]["result"], params={"wait": 30})
    assert (result.status_code, result.json()) == (
        200, {"id": chain["id"], "output": {"name": "tea", "lines": []}},
    )  # fmt: skip
    read = (await web.get(chain["links"]["chain"])).json()
    assert read["status"] == "completed"
    assert read["closed_at"].endswith("Z")
    progress = (await web.get(chain["links"]["progress"])).json()
    assert (progress["job_status"], progress["attempt"]) == ("completed", 1)
    [job] = (await web.get(chain["links"]["jobs"])).json()["items"]
    assert (job["input"], job["output"]) == ({"name": "tea", "lines": []},) * 2
    assert (await web.get(f"/jobs/{job['id']}")).json() == job
    listed = await web.get("/chains", params={"type": "order", "status": "completed", "attribute": "user:17"})
    assert [one["id"] for one in listed.json()["items"]] == [chain["id"]]
    assert (await web.get("/chains", params={"attribute": "user:18"})).json() == {"items": [], "next_cursor": None}


async def test_a_stale_chain_is_marked(local: Harness, http: Http, capsys: pytest.CaptureFixture[str]) -> None:
    """Over HTTP, on the dashboard, on the handle and on the command line; it can still be read."""
    chain = await local.client.start_chain(number, 1)
    await local.client.cancel_chain(chain)
    store = local.client.state.async_store()
    await store.open()
    await store.prune(PruneRequest({"number": Retention(cancelled=Keep(count=0, stale_for=3_600))}))
    await store.aclose()
    read = (await http(app_of(local.client)).get(f"/chains/{chain.id}")).json()
    assert (read["status"], read["stale_at"][-1]) == ("cancelled", "Z")
    dashboard = http(DashboardApp(local.client, access=lambda request: FULL_ACCESS))
    for page in ("/chains", f"/chain?id={chain.id}"):
        assert "</span>stale</span>" in (await dashboard.get(page)).text
    await chain.refresh()
    assert chain.stale_at is not None
    assert isinstance(local.client.state, SQLiteState)
    assert main(["chains", "list", "--json", "--url", f"sqlite:///{local.client.state.path}"]) == 0
    assert '"stale_at": "' in capsys.readouterr().out


async def test_phases_are_shown_with_the_progress(tmp_path: Path, http: Http) -> None:
    parts = JobType("parts", input=int, output=int, phases=("first", "second"))
    local = Harness(SQLiteState(tmp_path / "jobs.db"), job_types=JobTypes(parts))

    async def handler(attempt: Attempt[int, int]) -> int:
        one = await attempt.phase("first", lambda: 1, returns=int)
        return one + await attempt.phase("second", lambda: 1 // 0, returns=int)

    local.handles(parts, handler, retry=RetryPolicy(max_attempts=1))
    web, reader = http(app_of(local.client)), http(app_of(local.client, Access(["read"])))
    chain = (await web.post("/chains", json={"type": "parts", "input": 1})).json()
    before = (await web.get(chain["links"]["progress"])).json()
    assert [(one["name"], one["status"]) for one in before["phases"]] == [("first", "pending"), ("second", "pending")]
    async with local.worker():
        await web.get(chain["links"]["result"], params={"wait": 30})
    shown = (await web.get(chain["links"]["progress"])).json()
    assert (shown["progress"]["fraction"], shown["progress"]["phase"]["name"]) == (0.5, "second")
    first, second = shown["phases"]
    assert (first["status"], first["result"], second["status"]) == ("completed", 1, "failed")
    assert second["error"]["type"] == "ZeroDivisionError"
    for one in (await reader.get(chain["links"]["progress"])).json()["phases"]:
        assert not {"error", "result"} & {name for name, value in one.items() if value is not None}
    dashboard = http(DashboardApp(local.client, access=lambda request: FULL_ACCESS))
    page = (await dashboard.get("/job", params={"id": chain["id"]})).text.partition("Phases")[2]
    assert page.index("first") < page.index("second") < page.index("ZeroDivisionError")
    await local.close()


async def test_progress_is_shown_while_the_chain_runs(local: Harness, http: Http) -> None:
    recorded, go_on = asyncio.Event(), asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        attempt.record_progress(1, 4, message="secret")
        recorded.set()
        await go_on.wait()
        return 1

    local.handles(number, handler)
    open_web, reader = http(app_of(local.client)), http(app_of(local.client, Access(["read"])))
    chain = (await open_web.post("/chains", json={"type": "number", "input": 1})).json()
    async with local.worker():
        await recorded.wait()
        # The worker writes progress with its renewals, for which nobody sends a signal.
        async for state in local.client.watch_chain(chain["id"], interval=0.01):
            if state.progress is not None:
                break
        shown = (await open_web.get(chain["links"]["progress"])).json()
        assert (shown["progress"]["fraction"], shown["progress"]["message"]) == (0.25, "secret")
        assert "message" not in (await reader.get(chain["links"]["progress"])).json()["progress"]
        go_on.set()
        assert (await open_web.get(chain["links"]["result"], params={"wait": 30})).status_code == 200


async def test_a_chain_is_explained_and_changed(harness: Harness, http: Http) -> None:
    web, reader = http(app_of(harness.client)), http(app_of(harness.client, Access(["read"])))
    await web.post("/chains", json={"type": "number", "input": 1, "id": "first", "run_at": "2030-01-01T00:00:00Z"})
    chain = (await web.post("/chains", json={"type": "number", "input": 1, "id": "next", "blockers": ["first"]})).json()
    why = (await reader.get(chain["links"]["explanation"])).json()
    assert (why["chain_id"], why["reasons"][0]["cause"]) == ("next", "blocked")
    assert [(one["chain_id"], one["reasons"][0]["until"]) for one in why["blockers"]] == [
        ("first", "2030-01-01T00:00:00Z")
    ]
    later = await web.post("/chains/first/reschedule", json={"run_at": "2031-01-01T00:00:00Z"})
    assert (later.status_code, later.json()["id"]) == (200, "first")
    assert later.json()["scheduled_at"] == "2031-01-01T00:00:00Z"
    assert (await harness.client.get_job("first")).scheduled_at == datetime(2031, 1, 1, tzinfo=UTC)
    assert (await web.post("/chains/first/reprioritize", json={"priority": 7})).status_code == 200
    assert (await harness.client.get_job("first")).priority == 7
    assert problem(await web.post("/chains/first/reprioritize", json={"priority": 10**9}))[0] == 422
    assert problem(await web.post("/chains/missing/reschedule", json={"run_at": "2031-01-01T00:00:00Z"}))[0] == 404
    assert (await web.post("/chains/next/cancel", json={"cascade": True})).json()["status"] == "cancelled"
    assert (await web.get("/chains/first")).json()["status"] == "cancelled"
    for path, body in (("reschedule", {"run_at": "2031-01-01T00:00:00Z"}), ("reprioritize", {"priority": 1})):
        assert problem(await web.post(f"/chains/first/{path}", json=body)) == (409, "not-waiting")
    assert problem(await web.get("/chains/missing/explanation")) == (404, "chain-not-found")


async def test_an_explanation_without_payloads_has_no_errors(harness: Harness, http: Http) -> None:
    async def fails(attempt: Attempt[int, int]) -> int:
        raise ValueError("secret")

    harness.handles(number, fails, retry=RetryPolicy(initial_delay=3600.0, max_delay=3600.0))
    chain = await harness.client.start_chain(number, 1)
    async with harness.worker():
        async for state in harness.client.watch_chain(chain, interval=0.01):
            if state.job_status is JobStatus.SCHEDULED:
                break
        texts = []
        for access in (FULL_ACCESS, Access(["read"])):
            why = (await http(app_of(harness.client, access)).get(f"/chains/{chain.id}/explanation")).json()
            [reason] = [one for one in why["reasons"] if one["cause"] == "retry_delayed"]
            texts.append(reason.get("text"))
    assert "ValueError: secret" in texts[0]
    assert texts[1] is None


async def test_a_chain_is_cancelled_retried_and_completed(harness: Harness, http: Http) -> None:
    web = http(app_of(harness.client))
    await web.post("/chains", json={"type": "number", "input": 1, "id": "mine"})
    assert problem(await web.post("/chains/mine/retry")) == (409, "chain-not-retriable")
    cancelled = await web.post("/chains/mine/cancel", json={"reason": "too late"})
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert cancelled.json()["error"]["message"] == "too late"
    assert (await web.post("/chains/mine/cancel")).json() == cancelled.json()
    assert problem(await web.get("/chains/mine/result")) == (409, "chain-cancelled")
    assert (await web.post("/chains/mine/retry")).json()["status"] == "open"
    assert problem(await web.post("/chains/mine/complete", json={"output": "no number"})) == (422, "invalid-payload")
    early = await web.post("/chains/mine/complete", json={"output": 5, "expecting": "order"})
    assert problem(early) == (409, "other-job-type")
    assert (await web.post("/chains/mine/complete", json={"output": 5})).json()["status"] == "completed"
    assert (await web.get("/chains/mine/result")).json() == {"id": "mine", "output": 5}
    assert problem(await web.post("/chains/mine/complete", json={"output": 6})) == (409, "chain-already-closed")


async def test_the_result_of_a_failed_chain_is_a_problem_with_its_reason(local: Harness, http: Http) -> None:
    async def handler(attempt: Attempt[int, int]) -> int:
        raise Unrecoverable("no paper")

    local.handles(number, handler)
    web = http(app_of(local.client))
    chain = (await web.post("/chains", json={"type": "number", "input": 1})).json()
    async with local.worker():
        failed = await web.get(chain["links"]["result"], params={"wait": 30})
    assert problem(failed) == (409, "chain-failed")
    assert "no paper" in failed.json()["detail"]


async def test_a_reader_without_payloads_sees_none(local: Harness, http: Http) -> None:
    await local.client.start_chain(number, 4711, id="mine")
    await local.client.cancel_chain("mine", reason="a secret")
    web = http(app_of(local.client, Access(["read"])))
    for path in ("/chains", "/chains/mine", "/chains/mine/jobs", "/chains/mine/progress", "/jobs/mine"):
        response = await web.get(path)
        assert response.status_code == 200
        assert "4711" not in response.text
        assert "secret" not in response.text
    assert problem(await web.get("/chains/mine/result")) == (403, "not-allowed")


@pytest.mark.parametrize("id", HOSTILE_IDS)
async def test_an_id_of_any_text_has_a_path(local: Harness, http: Http, id: str) -> None:
    web = http(app_of(local.client))
    chain = (await web.post("/chains", json={"type": "number", "input": 1, "id": id})).json()
    assert chain["id"] == id
    del chain["links"]["events"]  # A stream does not end: see test_streams.py.
    for link in chain["links"].values():
        response = await web.get(link)
        assert response.status_code in (200, 202), (link, response.text)
    assert (await web.get(chain["links"]["chain"])).json()["id"] == id
    assert (await web.post(f"{chain['links']['chain']}/cancel")).json()["status"] == "cancelled"


# --- repeated requests ------------------------------------------------------------------------------------------------


async def test_a_repeated_request_with_its_key_finds_its_chain(harness: Harness, http: Http) -> None:
    web = http(app_of(harness.client))
    body: dict[str, Any] = {"type": "order", "input": {"name": "tea"}}
    key = {"Idempotency-Key": "order-17"}
    answers = await asyncio.gather(*(web.post("/chains", json=body, headers=key) for _ in range(8)))
    assert sorted(one.status_code for one in answers) == [200] * 7 + [201]
    assert len({one.json()["id"] for one in answers}) == 1
    await web.post(answers[0].json()["links"]["chain"] + "/cancel")
    assert (await web.post("/chains", json=body, headers=key)).json()["status"] == "cancelled"
    other = {"type": "order", "input": {"name": "coffee"}}
    assert problem(await web.post("/chains", json=other, headers=key)) == (422, "idempotency-key-reused")
    assert problem(await web.post("/chains", json={"type": "number", "input": 1}, headers=key)) == (
        422, "idempotency-key-reused",
    )  # fmt: skip
    assert (await web.post("/chains", json=other, headers={"Idempotency-Key": "order-18"})).status_code == 201
    assert len((await web.get("/chains")).json()["items"]) == 2


async def test_keys_are_those_of_one_principal(local: Harness, http: Http) -> None:
    body, key = {"type": "number", "input": 1}, {"Idempotency-Key": "1"}
    webs = [http(app_of(local.client, Access(Action, principal=who))) for who in ("ada", "bob")]
    assert [(await web.post("/chains", json=body, headers=key)).status_code for web in webs] == [201, 201]


async def test_a_deduplicated_start_answers_with_the_chain_that_it_found(local: Harness, http: Http) -> None:
    web = http(app_of(local.client))
    body = {"type": "number", "input": 1, "deduplication": {"key": "one"}}
    first, second = await web.post("/chains", json=body), await web.post("/chains", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (first.json()["deduplicated"], second.json()["deduplicated"]) == (False, True)
    assert first.json()["id"] == second.json()["id"]


async def test_a_second_start_with_an_id_is_refused(harness: Harness, http: Http) -> None:
    web = http(app_of(harness.client))
    body = {"type": "number", "input": 1, "id": "mine"}
    assert (await web.post("/chains", json=body)).status_code == 201
    assert problem(await web.post("/chains", json=body)) == (409, "id-exists")
    assert problem(await web.post("/chains", json=body, headers={"Idempotency-Key": "1"})) == (422, "invalid-body")


# --- what is refused --------------------------------------------------------------------------------------------------

INVALID = [
    ({"content": b"{"}, 400, "invalid-json"),
    ({"content": b'{"type": "number", "input": NaN}'}, 400, "invalid-json"),
    ({"content": b'{"type": "number", "input": 1e400}'}, 400, "invalid-json"),
    ({"content": b"[" * 100_000}, 400, "invalid-json"),
    ({"content": b'{"type": "number", "input": ' + b"9" * 10_000 + b"}"}, 400, "invalid-json"),
    ({"content": b'{"type": "anything", "input": "\\ud800"}'}, 422, "invalid-body"),
    ({"content": b"\xff\xfe"}, 400, "invalid-json"),
    ({"content": b"[]"}, 422, "invalid-body"),
    ({"content": b""}, 422, "invalid-body"),
    ({"json": {"type": "number"}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": "no number"}}, 422, "invalid-payload"),
    ({"json": {"type": "order", "input": {"name": "x" * 10, "lines": ["a"]}}}, 422, "invalid-payload"),
    ({"json": {"type": "nothing", "input": 1}}, 422, "unknown-job-type"),
    ({"json": {"type": "number", "input": 1, "priority": 10**9}}, 422, "invalid-argument"),
    ({"json": {"type": "number", "input": 1, "result_ttl": False}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "run_at": "0001-01-01T00:00:00+16:17"}}, 422, "invalid-argument"),
    ({"json": {"type": "number", "input": 1, "priority": "1"}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "attributes": {"user": True}}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "deduplication": {"key": "a", "window": "1"}}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "inputs": 1}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "run_at": "2030-01-01T00:00:00"}}, 422, "invalid-body"),
    ({"json": {"type": "number", "input": 1, "id": "a\0b"}}, 422, "invalid-identifier"),
    ({"json": {"type": "number", "input": 1, "blockers": ["missing"]}}, 404, "chain-not-found"),
    ({"json": {"type": "number", "input": 1, "attributes": {"http-request": "x"}}}, 422, "invalid-body"),
    ({"json": {"type": "anything", "input": "\0"}}, 422, "invalid-payload"),
    ({"content": b'{"type": "number", "input": 1}', "headers": {"Content-Type": "text/plain"}}, 415, "not-json"),
]


@pytest.mark.parametrize(("request_", "status", "code"), INVALID)
async def test_an_invalid_start_is_refused(
    local: Harness, http: Http, request_: dict[str, Any], status: int, code: str
) -> None:
    web = http(app_of(local.client))
    given = {"headers": {"Content-Type": "application/json"}, **request_}
    assert problem(await web.post("/chains", **given)) == (status, code)
    assert (await local.client.list_chains()).items == ()


async def test_a_body_is_limited_whether_its_length_is_declared_or_not(local: Harness, http: Http) -> None:
    web = http(app_of(local.client, max_body=100))
    body = b'{"type": "anything", "input": "' + b"x" * 100 + b'"}'
    declared = {"Content-Type": "application/json"}

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield body

    assert problem(await web.post("/chains", content=body, headers=declared)) == (413, "body-too-large")
    assert problem(await web.post("/chains", content=pieces(), headers=declared)) == (413, "body-too-large")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/chains?limit=0", 400, "invalid-query"),
        ("/chains?limit=201", 400, "invalid-query"),
        ("/chains?limits=1", 400, "invalid-query"),
        ("/chains?limit=1&limit=2", 400, "invalid-query"),
        ("/chains?since=yesterday", 400, "invalid-query"),
        ("/chains?since=0001-01-01T00:00:00%2B16:17", 422, "invalid-argument"),
        ("/chains?status=done", 400, "invalid-query"),
        ("/chains?attribute=user", 400, "invalid-query"),
        ("/chains?cursor=x", 400, "invalid-cursor"),
        ("/chains/missing", 404, "chain-not-found"),
        ("/chains/missing/jobs", 404, "chain-not-found"),
        ("/chains/missing/progress", 404, "chain-not-found"),
        ("/chains/missing/result", 404, "chain-not-found"),
        ("/chains/a%00b", 422, "invalid-identifier"),
        ("/jobs/missing", 404, "job-not-found"),
        ("/nothing", 404, "not-found"),
        ("/chains/x/cancel", 405, "method-not-allowed"),
    ],
)
async def test_an_invalid_read_is_refused(local: Harness, http: Http, path: str, status: int, code: str) -> None:
    assert problem(await http(app_of(local.client)).get(path)) == (status, code)


async def test_an_unexpected_error_is_answered_without_its_text(local: Harness, http: Http) -> None:
    def access(request: object) -> Access:
        raise RuntimeError("password=secret")

    response = await http(WebApp(local.client, access=access)).get("/chains")
    assert problem(response) == (500, "failed")
    assert "secret" not in response.text


async def test_a_store_that_does_not_answer_is_no_open_chain(
    local: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(ids: object) -> None:
        raise StateUnavailableError("connection refused")

    await local.client.start_chain(number, 1, id="mine")
    monkeypatch.setattr("queuert.web.api._SHORT_READ", 0.05)
    store = await local.client._open_store()
    monkeypatch.setattr(store, "get_chain_states", unreachable, raising=False)
    response = await http(app_of(local.client)).get("/chains/mine/progress")
    assert problem(response) == (503, "store-unavailable")
    assert response.headers["retry-after"] == "1"


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_waiting": 2}, {"max_waiting_per_principal": 2}])
async def test_requests_that_wait_are_limited_and_end_when_the_application_stops(
    local: Harness, http: Http, limit: dict[str, Any]
) -> None:
    app = app_of(local.client, Access(Action, principal="ada"), **limit)
    web = http(app)
    await local.client.start_chain(number, 1, id="mine")
    waiting = [asyncio.create_task(web.get("/chains/mine/result?wait=60")) for _ in range(2)]
    await until(lambda: app.open_waits == 2, "two requests wait")
    refused = await web.get("/chains/mine/result?wait=60")
    assert problem(refused) == (503, "too-many-waiting")
    assert refused.headers["retry-after"] == "5"
    assert (await web.get("/chains/mine/result")).status_code == 202
    app.stop()
    assert [(await one).status_code for one in waiting] == [202, 202]
    assert app.open_waits == 0
    assert (await web.get("/chains/mine/result?wait=60")).status_code == 202


async def test_a_wait_ends_when_its_client_goes_away(local: Harness) -> None:
    app = app_of(local.client)
    await local.client.start_chain(number, 1, id="mine")
    gone, sent = asyncio.Event(), list[Any]()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/chains/mine/result", "raw_path": b"/chains/mine/result",
        "query_string": b"wait=60", "headers": [], "root_path": "", "scheme": "http", "server": ("a", 80),
    }  # fmt: skip
    request = asyncio.create_task(app(scope, receive, send))
    await until(lambda: app.open_waits, "a request waits")
    gone.set()
    await request
    assert app.open_waits == 0
