"""The application in others, at several paths, and behind proxies that cut a prefix."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from queuert import Attempt, Client, QueuertError, Unrecoverable, after
from queuert.errors import ConfigurationError
from queuert.web import FULL_ACCESS, WebApp, answer_error
from tests.support.harness import Harness
from tests.support.job_types import number
from tests.support.waiting import WAIT, in_time
from tests.web.applications import Http, app_of, problem


def alone(app: WebApp) -> tuple[Any, str]:
    return app, ""


def in_starlette(app: WebApp) -> tuple[Any, str]:
    return Starlette(routes=[Mount("/ops/queue", app)]), "/ops/queue"


def in_fastapi(app: WebApp) -> tuple[Any, str]:
    host = FastAPI()
    host.mount("/queue", app)
    return host, "/queue"


def in_litestar(app: WebApp) -> tuple[Any, str]:
    @asgi("/queue", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/queue"}, receive, send)

    return Litestar([mounted]), "/queue"


def by_hand(app: WebApp) -> tuple[Any, str]:
    """As a Django project does in its ``asgi.py``."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/queue/")
        await app({**scope, "root_path": "/queue"}, receive, send)

    return application, "/queue"


@pytest.mark.parametrize("mounted", [alone, in_starlette, in_fastapi, in_litestar, by_hand])
@pytest.mark.parametrize("id", ["plain", "a/b c", "50%"])
async def test_links_lead_to_the_application_wherever_it_is_mounted(
    local: Harness, http: Http, mounted: Any, id: str
) -> None:
    host, base = mounted(app_of(local.client))
    web = http(host)
    started = await web.post(f"{base}/chains", json={"type": "number", "input": 1, "id": id})
    assert started.status_code == 201
    links = [*started.json()["links"].values(), *(await web.get(f"{base}/")).json().values()]
    for link in links:
        if link.endswith("/events"):
            continue  # A stream does not end: see test_streams.py.
        assert link.startswith(f"{base}/")
        assert (await web.get(link)).is_success, link
    assert (await web.get(started.headers["location"])).json()["id"] == id
    [server] = (await web.get(f"{base}/openapi.json")).json()["servers"]
    assert server["url"] == (base or "/")


async def test_errors_in_routes_of_an_application_are_for_anybody(local: Harness, http: Http) -> None:
    """They quote no handler, no reason, and no worker."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        begun.set()
        await may_end.wait()
        raise Unrecoverable("password=canary")

    host = FastAPI()
    host.add_exception_handler(QueuertError, answer_error)

    @host.get("/{id}")
    async def show(id: str) -> int:
        return await (await local.client.get_chain(id, number)).result(timeout=0.1)

    local.handles(number, handler)
    web = http(host)
    mine = await local.client.start_chain(number, 1, id="mine")
    await local.client.start_chain(number, 1, id="cancelled", run_at=after(hours=1))
    await local.client.cancel_chain("cancelled", reason="canary")
    async with local.worker(name="canary"):
        await in_time(begun.wait())
        early = await web.get("/mine")
        may_end.set()
        await mine.wait(timeout=WAIT)
        failed, cancelled = await web.get("/mine"), await web.get("/cancelled")
    for answer, code in ((early, 504), (failed, 409), (cancelled, 409)):
        assert problem(answer)[0] == code
        assert answer.url.path.strip("/") in answer.json()["detail"]
        assert "canary" not in answer.text


@pytest.mark.parametrize(
    ("prefix", "base"),
    [("/ops", "/ops"), ("/ops/", "/ops"), ("/", ""), ("https://evil.test", ""), ("//evil.test", ""), ("/a\\b", "")],
)
async def test_links_begin_with_the_prefix_that_a_proxy_has_cut(
    local: Harness, http: Http, prefix: str, base: str
) -> None:
    await local.client.start_chain(number, 1, id="mine")
    chain = (await http(app_of(local.client)).get("/chains/mine", headers={"X-Forwarded-Prefix": prefix})).json()
    assert chain["links"]["chain"] == f"{base}/chains/mine"


@pytest.mark.parametrize("limit", ["max_body", "max_wait", "max_waiting", "max_waiting_per_principal"])
async def test_a_limit_is_above_0(local: Harness, limit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{limit} must be above 0"):
        app_of(local.client, FULL_ACCESS, **{limit: 0})


def test_the_client_is_asynchronous(local: Harness) -> None:
    client: Any = Client(local.state, local.job_types)
    with pytest.raises(ConfigurationError, match="must be an AsyncClient, got Client"):
        WebApp(client)
