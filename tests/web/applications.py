"""Applications with the same access for all requests, and their HTTP clients."""

from __future__ import annotations

from typing import Any, Protocol

import httpx

from queuert import AsyncClient
from queuert.web import FULL_ACCESS, Access, WebApp


class Http(Protocol):
    """Opens an HTTP client of an application."""

    def __call__(self, app: Any, *, base: str = "", **settings: Any) -> httpx.AsyncClient: ...


def app_of(client: AsyncClient, access: Access = FULL_ACCESS, **settings: Any) -> WebApp:
    """An application with the same access for all."""
    return WebApp(client, access=lambda request: access, **settings)


def problem(response: httpx.Response) -> tuple[int, str]:
    """The status, and the code of the problem."""
    body = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert body["status"] == response.status_code
    assert body["detail"]
    return response.status_code, body["type"].removeprefix("urn:queuert:problem:")
