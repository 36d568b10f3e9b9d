"""What the doctor says of events that no worker reads for webhooks."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from queuert.errors import EventsLostError
from queuert.event_log import EventFilter
from queuert.state.adapter import StateAdapter
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Diagnosable, Finding, Severity
from queuert.state.paging import Page, PageRequest
from queuert.worker.webhooks import WebhookDispatcher
from tests.webhooks.deliveries import Deliveries, double

AT_ONCE = replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)


def finding(state: StateAdapter) -> Finding | None:
    assert isinstance(state, Diagnosable)
    found = [one for one in state.diagnose(AT_ONCE) if one.check == "webhooks"]
    return found[0] if found else None


def is_warning(found: Finding | None) -> bool:
    return found is not None and found.severity is Severity.WARNING


async def test_events_that_no_worker_reads(state: StateAdapter, deliveries: Deliveries) -> None:
    client = deliveries.client
    await client.start_chain(double, 1)
    assert finding(state) is None, "there is no webhook"
    await deliveries.webhook()
    found = finding(state)
    assert found is not None
    assert found.severity is Severity.OK, "what was before it is of no interest to it"

    await client.start_chain(double, 2)
    # The log shows an event once no transaction is open that began before it, also one of another database.
    found = await deliveries.until(lambda: asyncio.to_thread(finding, state), is_warning)
    assert re.fullmatch(r"the oldest event that no worker has read for webhooks is \d+ seconds old", found.found)
    assert "webhook_processors" in found.remedy
    assert isinstance(state, Diagnosable)
    [patient] = [one for one in state.diagnose() if one.check == "webhooks"]
    assert patient.severity is Severity.OK

    dispatcher = WebhookDispatcher(client, await client._open_store(), deliveries.settings())
    assert await dispatcher._take()
    while await dispatcher.dispatch():
        pass
    found = finding(state)
    assert found is not None
    assert found.severity is Severity.OK


@pytest.mark.parametrize("left", [True, False], ids=["some", "none"])
async def test_what_the_log_has_lost_does_not_wait(
    state: StateAdapter, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, *, left: bool
) -> None:
    await deliveries.webhook()
    await deliveries.client.start_chain(double, 1)
    await deliveries.until(lambda: asyncio.to_thread(finding, state), is_warning)
    kind = type(state.sync_store())
    read, cursors = kind.list_events, list[str | None]()

    def lost(store: object, filter: EventFilter, page: PageRequest) -> Page[object]:
        cursors.append(page.cursor)
        if len(cursors) == 1:
            error = EventsLostError("gone")
            error.cursor = page.cursor if left else None
            raise error
        return read(store, filter, page)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "list_events", lost)
    found = finding(state)
    assert found is not None
    assert found.severity is (Severity.WARNING if left else Severity.OK)
    assert len(cursors) == (2 if left else 1)
