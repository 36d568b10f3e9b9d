"""Observers hear who wanted for which change, and whether it was made."""

from __future__ import annotations

from typing import Any

import pytest

from queuert.observability.events import OperatorActed
from queuert.testing.events import EventLog
from queuert.web import NO_ACCESS, Access, Action, WebApp
from queuert.web.dashboard import DashboardApp
from tests.support.harness import Harness
from tests.support.job_types import anything
from tests.web.applications import Http

ADA = Access(Action, principal="ada")


@pytest.fixture
def log(local: Harness) -> EventLog:
    log = EventLog()
    local.client.observers.add(log)
    return log


def reported(log: EventLog) -> list[tuple[Any, ...]]:
    return [(one.user, one.change, one.target, one.outcome, one.error) for one in log.of(OperatorActed)]


async def test_changes_over_the_dashboard(local: Harness, http: Http, log: EventLog) -> None:
    chain = await local.client.start_chain(anything, "secret", id="order-21")
    web = http(DashboardApp(local.client, access=lambda request: ADA))
    await web.get("/chain", params={"id": chain.id})
    await web.post("/types/pause", data={"type": "anything", "reason": "down"})
    await web.post("/chain/complete", data={"id": chain.id, "type": "anything", "output": '"secret"'})
    await web.post("/chain/retry", data={"id": "missing"})
    reader = http(DashboardApp(local.client, access=lambda request: Access(["read"], principal="bob")))
    await reader.post("/chain/cancel", params={"id": chain.id})
    nobody = http(DashboardApp(local.client, access=lambda request: NO_ACCESS))
    await nobody.post("/chain/delete", data={"id": chain.id})
    assert reported(log) == [
        ("ada", "/types/pause", "type=anything&reason=down", "done", None),
        ("ada", "/chain/complete", "id=order-21&type=anything", "done", None),
        ("ada", "/chain/retry", "id=missing", "failed", "chain-not-found"),
        ("bob", "/chain/cancel", "id=order-21", "refused", "not-allowed"),
        (None, "/chain/delete", "", "refused", "not-allowed"),
    ]


async def test_changes_over_http(local: Harness, http: Http, log: EventLog) -> None:
    await local.client.start_chain(anything, 1, id="order-21")
    web = http(WebApp(local.client, access=lambda request: ADA))
    await web.post("/chains", json={"type": "anything", "input": 1})
    assert (await web.post("/chains/order-21/cancel", json={})).status_code == 200
    await web.post("/chains/missing/retry", json={})
    reader = http(WebApp(local.client, access=lambda request: Access(["read"], principal="bob")))
    await reader.post("/chains/order-21/retry", json={})
    assert reported(log) == [
        ("ada", "/chains/{id}/cancel", "id=order-21", "done", None),
        ("ada", "/chains/{id}/retry", "id=missing", "failed", "chain-not-found"),
        ("bob", "/chains/{id}/retry", "id=order-21", "refused", "not-allowed"),
    ]
