"""Who may do what: each route, for each access that lacks its action."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Route

from queuert.errors import ConfigurationError
from queuert.web import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access, Action, WebApp, bearer_tokens
from tests.support.harness import Harness
from tests.support.job_types import number
from tests.web.applications import Http, app_of, problem

BODIES: dict[str, Any] = {
    "/chains": {"type": "number", "input": 1, "id": "new"},
    "/chains/{id:id}/cancel": {},
    "/chains/{id:id}/retry": {},
    "/chains/{id:id}/reschedule": {"run_at": "2030-01-01T00:00:00Z"},
    "/chains/{id:id}/reprioritize": {"priority": 5},
    "/chains/{id:id}/complete": {"output": 1},
    "/webhooks": {"url": "https://example.com/hook"},
    "/webhooks/{id:id}/rotate": {},
    "/webhooks/{id:id}/enable": {},
    "/webhooks/{id:id}/disable": {},
    "/webhooks/{id:id}/delete": {},
    "/webhooks/{id:id}/ping": {},
    "/webhooks/{id:id}/replay": {"since": "2026-01-01T00:00:00Z"},
}
"""A valid body for each POST."""

ACTIONS = {
    ("GET", "/"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/job-types"): None,
    ("GET", "/chains"): "read",
    ("POST", "/chains"): "start",
    ("GET", "/chains/{id:id}"): "read",
    ("GET", "/chains/{id:id}/progress"): "read",
    ("GET", "/chains/{id:id}/explanation"): "read",
    ("GET", "/chains/{id:id}/jobs"): "read",
    ("GET", "/chains/{id:id}/result"): "read_payloads",
    ("POST", "/chains/{id:id}/cancel"): "cancel",
    ("POST", "/chains/{id:id}/retry"): "retry",
    ("POST", "/chains/{id:id}/reschedule"): "change",
    ("POST", "/chains/{id:id}/reprioritize"): "change",
    ("POST", "/chains/{id:id}/complete"): "complete",
    ("GET", "/chains/{id:id}/events"): "read",
    ("GET", "/events"): "read",
    ("GET", "/jobs/{id:id}"): "read",
    ("GET", "/webhooks"): "read",
    ("POST", "/webhooks"): "edit_webhooks",
    ("GET", "/webhooks/{id:id}"): "read",
    ("POST", "/webhooks/{id:id}/rotate"): "edit_webhooks",
    ("POST", "/webhooks/{id:id}/enable"): "edit_webhooks",
    ("POST", "/webhooks/{id:id}/disable"): "edit_webhooks",
    ("POST", "/webhooks/{id:id}/delete"): "edit_webhooks",
    ("POST", "/webhooks/{id:id}/ping"): "replay_webhooks",
    ("POST", "/webhooks/{id:id}/replay"): "replay_webhooks",
    ("GET", "/webhooks/{id:id}/deliveries"): "read",
}
"""The action of each route, as the design note has it."""


def routes(app: WebApp) -> list[tuple[str, str]]:
    """The methods and paths that the router answers."""
    found = []
    for route in app.starlette.routes:
        assert isinstance(route, Route)
        assert route.methods is not None
        found += [(method, route.path) for method in sorted(route.methods - {"HEAD"})]
    return found


async def state_of(harness: Harness) -> list[Any]:
    """All that a request could change."""
    chains = [(chain.id, chain.status) for chain in (await harness.client.list_chains()).items]
    return [*chains, *await harness.client.list_webhooks()]


async def test_every_route_is_in_the_table(local: Harness) -> None:
    assert set(routes(app_of(local.client))) == set(ACTIONS)
    assert {path for method, path in routes(app_of(local.client)) if method == "POST"} == set(BODIES)


def test_the_design_note_has_the_same_table() -> None:
    from scripts.check_docs import ROOT

    text = (ROOT / "docs" / "design" / "web.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(GET|POST) (/\S*)` \| (?:`(\w+)`|any) \|", text, re.MULTILINE)
    shown = {(method, path.replace("{id}", "{id:id}")): action or None for method, path, action in rows}
    assert shown == ACTIONS


@pytest.mark.parametrize(("method", "path"), sorted(ACTIONS))
async def test_a_route_is_refused_for_each_access_without_its_action(
    local: Harness, http: Http, method: str, path: str
) -> None:
    await local.client.start_chain(number, 1, id="open")
    await local.client.start_chain(number, 1, id="closed")
    await local.client.cancel_chain("closed")
    before = await state_of(local)
    action = ACTIONS[method, path]
    id = "closed" if path.endswith("/retry") else "open"
    if path.startswith("/webhooks/"):
        id = (await local.client.create_webhook("https://example.com/hook")).webhook.id
        before = await state_of(local)
    lacking = [NO_ACCESS, *([Access([one]) for one in Action if one != action] if action else [])]
    if action is not None:
        lacking.append(Access([one for one in Action if one != action]))
    for access in lacking:
        web = http(app_of(local.client, access))
        refused = await web.request(method, path.replace("{id:id}", id), json=BODIES.get(path))
        assert problem(refused) == (403, "not-allowed"), access
        assert await state_of(local) == before
    app = app_of(local.client, FULL_ACCESS if action is None else Access([action]))
    app.stop()  # Streams end at once.
    answered = await http(app).request(method, path.replace("{id:id}", id), json=BODIES.get(path))
    assert answered.is_success, answered.text


async def test_an_application_without_access_is_closed(local: Harness, http: Http) -> None:
    web = http(WebApp(local.client))
    for method, path in ACTIONS:
        assert problem(await web.request(method, path.replace("{id:id}", "x"), json={})) == (403, "closed")


async def test_bearer_tokens_open_what_they_are_for(local: Harness, http: Http) -> None:
    access = bearer_tokens({"operator-" + "0" * 20: FULL_ACCESS, "reader-" + "0" * 20: READ_ACCESS})
    web = http(WebApp(local.client, access=access))

    async def statuses(token: str) -> tuple[int, int]:
        headers = {"Authorization": f"Bearer {token}"}
        started = await web.post("/chains", json={"type": "number", "input": 1}, headers=headers)
        return (await web.get("/chains", headers=headers)).status_code, started.status_code

    assert await statuses("operator-" + "0" * 20) == (200, 201)
    assert await statuses("reader-" + "0" * 20) == (200, 403)
    assert await statuses("operator-" + "0" * 19) == (401, 401)
    assert await statuses("") == (401, 401)
    refused = await web.get("/chains", headers={"Authorization": "Basic b3BlcmF0b3I6"})
    assert problem(refused) == (401, "unauthorized")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert (await web.get("/chains", headers=[(b"Authorization", b"Bearer \xff\xfe")])).status_code == 401


async def test_access_may_be_asynchronous_and_must_be_an_access(local: Harness, http: Http) -> None:
    async def by_path(request: Request) -> Access:
        return READ_ACCESS if request.path_params.get("id") == "mine" else NO_ACCESS

    await local.client.start_chain(number, 1, id="mine")
    web = http(WebApp(local.client, access=by_path))
    assert (await web.get("/chains/mine")).status_code == 200
    assert (await web.get("/chains/other")).status_code == 403
    wrong: Any = lambda request: True  # noqa: E731
    assert problem(await http(WebApp(local.client, access=wrong)).get("/chains")) == (500, "failed")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://elsewhere.test"}, True),
        ({"Origin": "http://queue.test"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://queue.test"}, False),
        ({"Origin": "http://elsewhere.test"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer something"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": "Basic YTpi"}, False),
    ],
)
async def test_another_site_cannot_use_the_cookies_of_this_one(
    local: Harness, http: Http, headers: dict[str, str], allowed: bool
) -> None:
    web = http(app_of(local.client))
    response = await web.post("/chains", json={"type": "number", "input": 1}, headers=headers)
    assert response.status_code == 201 if allowed else problem(response) == (403, "other-site")
    assert (await web.get("/chains", headers=headers)).status_code == 200


def test_an_access_names_actions_that_exist() -> None:
    assert Access(["read"]) == READ_ACCESS
    with pytest.raises(ConfigurationError, match="some of read, read_payloads"):
        Access(["reed"])
    with pytest.raises(ConfigurationError, match=r"write \[...\]"):
        Access("read")
    with pytest.raises(ConfigurationError, match="16 characters"):
        bearer_tokens({"short": FULL_ACCESS})
    with pytest.raises(ConfigurationError, match="one or more"):
        bearer_tokens({})
