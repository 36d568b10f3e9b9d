"""What the tests of the HTTP interface share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from queuert.state.adapter import StateAdapter
from queuert.state.sqlite import SQLiteState
from queuert.web import WebApp
from tests.support.harness import Harness
from tests.web.applications import Http


@pytest.fixture
async def harness(state: StateAdapter) -> AsyncIterator[Harness]:
    """A client, and workers that a test starts."""
    harness = Harness(state)
    yield harness
    await harness.close()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Harness]:
    """The same on SQLite, for what does not depend on the store."""
    harness = Harness(SQLiteState(tmp_path / "jobs.db"))
    yield harness
    await harness.close()


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """Opens HTTP clients, and closes them."""
    async with AsyncExitStack() as stack:
        opened: list[httpx.AsyncClient] = []

        def open_client(app: Any, *, base: str = "", **settings: Any) -> httpx.AsyncClient:
            if not isinstance(app, WebApp):
                # Forms come from browsers, which say from which site.
                settings["headers"] = {"Origin": "http://queue.test", **settings.get("headers", {})}
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url=f"http://queue.test{base}", **settings)
            opened.append(client)
            stack.push_async_callback(client.aclose)
            return client

        yield open_client
