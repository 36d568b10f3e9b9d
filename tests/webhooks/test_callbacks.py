"""Callbacks: a signed address uses one chain once; what is forged, expired, used or of another chain is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from queuert import AsyncClient, Attempt, ChainStatus, Client, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.callbacks import CallbackUrls, InvalidCallbackError
from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.state.adapter import StateAdapter
from queuert.state.sqlite import SQLiteState
from queuert.web import CallbackApp

approve = JobType("approve", input=str, output=int)
ask = JobType("ask", input=str, output=Any)
JOB_TYPES = JobTypes(approve, ask)
URLS = CallbackUrls("https://queue.test/callbacks/", "old" * 16, "new" * 16)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES, callbacks=URLS) as client:
        yield client


@pytest.fixture
async def http(client: AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(CallbackApp(client, max_body=1_000))
    async with httpx.AsyncClient(transport=transport, base_url="https://queue.test") as http:
        yield http


def _path(url: str) -> str:
    assert url.startswith("https://queue.test/callbacks/")
    return "/" + url.rpartition("/")[2]


def _problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:queuert:problem:")


async def test_a_get_says_what_it_is_for_and_a_post_completes_once(
    client: AsyncClient, http: httpx.AsyncClient
) -> None:
    chain = await client.start_chain(approve, "x")
    path = _path(client.callback_url(chain, expires=60, expecting=approve))
    for _ in range(2):
        shown = await http.get(path)
        assert (shown.status_code, shown.json()["status"], shown.json()["chain"]) == (200, "open", chain.id)
        assert shown.headers["cache-control"] == "no-store"
        expires_at = shown.json()["expires_at"]
        assert expires_at.endswith("Z"), "as all times over HTTP"
        assert datetime.now(UTC) < datetime.fromisoformat(expires_at) < datetime.now(UTC) + timedelta(minutes=2)
    assert _problem(await http.post(path, json={"output": "no number"})) == (422, "invalid-payload")
    done = await http.post(path, json={"output": 17})
    assert (done.status_code, done.json()["status"]) == (200, "completed")
    assert await chain.result() == 17
    assert _problem(await http.post(path, json={"output": 17})) == (409, "callback-used")
    for body in ({"output": 18}, {"output": "no number"}, {"error": "late"}):
        assert _problem(await http.post(path, json=body)) == (409, "chain-already-closed")
    assert await (await client.get_chain(chain.id)).result() == 17


@pytest.mark.parametrize("wrong", [7, ["approve"], JobType, ""])
def test_what_cannot_be_expected_is_refused_by_the_name_of_the_parameter(client: AsyncClient, wrong: Any) -> None:
    with pytest.raises(
        InvalidIdentifierError, match=r"^expecting must (be a JobType or the name of one, got|not be em)"
    ):
        client.callback_url("chain", expecting=wrong)


async def test_an_error_closes_the_chain_with_its_reason(client: AsyncClient, http: httpx.AsyncClient) -> None:
    chain = await client.start_chain(approve, "x")
    answer = await http.post(_path(client.callback_url(chain)), json={"error": "no\nstock"})
    assert answer.json()["status"] == "cancelled"
    chain = await client.get_chain(chain.id)
    assert chain.status is ChainStatus.CANCELLED
    assert chain.error is not None
    assert chain.error.message.startswith("callback: no")


async def test_an_event_wakes_the_handler_that_waits_for_it(client: AsyncClient, http: httpx.AsyncClient) -> None:
    processors = Processors(JOB_TYPES)

    @processors.handles(ask)
    async def handle(attempt: Attempt[str, Any]) -> Outcome[Any]:
        return await attempt.wait_for_event("answered", dict[str, int], timeout=60)

    chain = await client.start_chain(ask, "x")
    path = _path(client.callback_url(chain, event="answered"))
    async with InProcessWorker(client, processors):
        assert (await http.post(path, json={"output": {"a": 1}})).status_code == 200
        assert await chain.result(timeout=30) == {"a": 1}
    assert _problem(await http.post(path, json={"output": {"a": 2}})) == (409, "callback-used")


async def test_an_event_is_sent_once(client: AsyncClient, http: httpx.AsyncClient) -> None:
    chain = await client.start_chain(ask, "x")
    path = _path(client.callback_url(chain, event="answered"))
    for before in (True, False):
        assert _problem(await http.post(path, json={"error": "late"})) == (422, "invalid-body"), "it cancels nothing"
        if before:
            assert (await http.post(path, json={"output": 1})).status_code == 200
    assert _problem(await http.post(path, json={"output": 1})) == (409, "callback-used")
    assert (await client.get_chain(chain.id)).status is ChainStatus.OPEN


async def test_a_refusal_says_whether_what_is_sent_counts(state: StateAdapter) -> None:
    """On each store: whoever closed the chain, and also if it is closed while the address is used."""
    client = AsyncClient(state, JOB_TYPES, callbacks=URLS)
    transport = httpx.ASGITransport(CallbackApp(client))
    async with client, httpx.AsyncClient(transport=transport, base_url="https://queue.test") as http:
        bodies: tuple[dict[str, Any], ...] = ({"output": 17}, {"error": "no stock"})
        for body in bodies:
            mine, theirs = await client.start_chain(approve, "x"), await client.start_chain(approve, "y")
            used, unused = (_path(client.callback_url(one)) for one in (mine, theirs))
            assert (await http.post(used, json=body)).status_code == 200
            await client.cancel_chain(theirs.id)
            assert _problem(await http.post(used, json=body)) == (409, "callback-used")
            assert _problem(await http.post(unused, json=body)) == (409, "chain-already-closed")
            chain = await client.start_chain(approve, "z")
            path = _path(client.callback_url(chain))
            answers = await asyncio.gather(*(http.post(path, json=body) for _ in range(5)))
            refused = [_problem(one) for one in answers if one.status_code != 200]
            assert refused == [(409, "callback-used")] * 4
        sent, other = await client.start_chain(ask, "x"), await client.start_chain(ask, "y")
        used, unused = (_path(client.callback_url(one, event="answered")) for one in (sent, other))
        assert (await http.post(used, json={"output": 1})).status_code == 200
        for one in (sent, other):
            await client.cancel_chain(one.id)
        assert _problem(await http.post(used, json={"output": 1})) == (409, "callback-used")
        assert _problem(await http.post(unused, json={"output": 1})) == (409, "chain-already-closed")


async def test_an_event_whose_type_is_known_takes_no_other_payload(tmp_path: Path) -> None:
    """Nor can an address be made for one with another name."""
    processors = Processors(JOB_TYPES)

    @processors.handles(ask)
    async def handle(attempt: Attempt[str, Any]) -> Outcome[Any]:
        return await attempt.wait_for_event("answered", dict[str, int], timeout=60)

    urls = CallbackUrls("https://queue.test/callbacks", "s" * 32, events={"answered": dict[str, int]})
    client = AsyncClient(SQLiteState(tmp_path / "typed.db"), JOB_TYPES, callbacks=urls)
    transport = httpx.ASGITransport(CallbackApp(client))
    async with client, httpx.AsyncClient(transport=transport, base_url="https://queue.test") as http:
        chain = await client.start_chain(ask, "x")
        with pytest.raises(
            ConfigurationError, match=r"one of the events of CallbackUrls \('answered'\), got 'anwsered'"
        ):
            client.callback_url(chain, event="anwsered")
        path = _path(client.callback_url(chain, event="answered"))
        for wrong in (17, {"a": "b"}, None):
            assert _problem(await http.post(path, json={"output": wrong})) == (422, "invalid-payload")
        async with InProcessWorker(client, processors):
            assert (await http.post(path, json={"output": {"a": 1}})).status_code == 200
            assert await chain.result(timeout=30) == {"a": 1}


async def test_what_is_forged_expired_or_of_another_chain_is_refused(
    client: AsyncClient, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, other = await client.start_chain(approve, "x"), await client.start_chain(approve, "y")
    path = _path(client.callback_url(chain, expires=60))
    body, _, signature = path.removeprefix("/").partition(".")
    theirs = _path(client.callback_url(other)).removeprefix("/").partition(".")
    stranger = CallbackUrls("https://queue.test/callbacks", "x" * 32)
    forged = [
        f"/{body}.{theirs[2]}", f"/{theirs[0]}.{signature}", f"/{body}", f"/{body}.", f"/{body}.{signature}=", "/x.y",
        f"/{body}.{signature}.", f"/.{signature}", "/%F0%9F%90%99.x", "/" + "A" * 20_000,
        _path(stranger.url(chain.id, expires=60, id="1")),
    ]  # fmt: skip
    for one in forged:
        for answer in (await http.get(one), await http.post(one, json={"output": 1})):
            assert _problem(answer) == (403, "invalid-callback"), one
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert _problem(await http.post(path, json={"output": 1})) == (403, "invalid-callback")
    monkeypatch.undo()
    assert (await client.get_chain(chain.id)).status is ChainStatus.OPEN
    assert (await client.get_chain(other.id)).status is ChainStatus.OPEN


async def test_a_chain_that_is_elsewhere_or_gone_is_not_completed(client: AsyncClient, http: httpx.AsyncClient) -> None:
    chain = await client.start_chain(approve, "x")
    path = _path(client.callback_url(chain, expecting="ask"))
    assert _problem(await http.post(path, json={"output": 1})) == (409, "other-job-type")
    missing = _path(client.callback_url("missing"))
    for answer in (await http.get(missing), await http.post(missing, json={"output": 1})):
        assert _problem(answer) == (404, "chain-not-found")


async def test_only_what_it_is_for_is_there(client: AsyncClient, http: httpx.AsyncClient) -> None:
    chain = await client.start_chain(approve, "x")
    path = _path(client.callback_url(chain))
    for method in ("PUT", "DELETE", "PATCH"):
        assert _problem(await http.request(method, path))[0] == 405
    for other in ("/", "/chains/x", "/chains/x/cancel", f"{path}/x"):
        assert _problem(await http.get(other))[0] == 404
    for other in ("/chains", "/events", "/openapi.json", "/webhooks"):
        assert _problem(await http.get(other)) == (403, "invalid-callback")
    for body in ({}, {"output": 1, "error": "x"}, {"result": 1}, {"error": 1}):
        assert _problem(await http.post(path, json=body)) == (422, "invalid-body")
    assert _problem(await http.post(path, content=b"{}", headers={"content-type": "text/plain"}))[0] == 415
    assert _problem(await http.post(path, json={"output": "x" * 2_000}))[0] == 413
    assert (await client.get_chain(chain.id)).status is ChainStatus.OPEN


def test_a_secret_is_replaced() -> None:
    old = CallbackUrls("https://queue.test/callbacks", "old" * 16)
    token = old.url("a", expires=60, id="1").rpartition("/")[2]
    assert URLS.opened(token).chain_id == "a"
    new = URLS.url("a", expires=60, id="1").rpartition("/")[2]
    with pytest.raises(InvalidCallbackError):
        old.opened(new)


def test_the_longest_ids_have_an_address() -> None:
    """Of characters that take most bytes in JSON."""
    longest = "\x01" * 512
    url = URLS.url(longest, expires=60, id="1", event="e" * 128, expecting=longest)
    assert URLS.opened(url.rpartition("/")[2]).chain_id == longest


def test_settings_are_checked(tmp_path: Path) -> None:
    for base, secrets in (("queue.test", ["x" * 32]), ("https://queue.test", []), ("https://queue.test", ["short"])):
        with pytest.raises(ConfigurationError):
            CallbackUrls(base, *secrets)
    with pytest.raises(ConfigurationError):
        CallbackUrls("https://queue.test", "x" * 32, events={"not a name!": int})
    with Client(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES) as without:
        with pytest.raises(ConfigurationError):
            without.callback_url("a")
        with pytest.raises(ConfigurationError):
            CallbackApp(without)  # type: ignore[arg-type]
    with Client(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES, callbacks=URLS) as client:
        for expires in (0, -1, 400 * 86_400):
            with pytest.raises(ConfigurationError):
                client.callback_url("a", expires=expires)
        with pytest.raises(ConfigurationError):
            client.callback_url("a", event="not a name!")
