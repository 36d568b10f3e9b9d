"""Managing webhooks: from the command line, over HTTP, and by a sync client; secrets are shown once (S11)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from queuert import AsyncClient, Client, JobTypes
from queuert.cli import main
from queuert.codecs import EncryptionCodec, PayloadFormat
from queuert.errors import CodecError, ConfigurationError
from queuert.state.sqlite import SQLiteState
from queuert.state.webhooks import NewWebhookAttempt
from queuert.web import Access, Action, WebApp
from queuert.web.access import FULL_ACCESS
from queuert.web.dashboard import DashboardApp
from queuert.webhooks import NewWebhook, new_secret
from tests.codecs.secret import NEW_KEY
from tests.webhooks.deliveries import double, other

JOB_TYPES = JobTypes(double, other)
URL = "https://example.com/hook"


def _run(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str, code: int = 0) -> Any:
    Client(SQLiteState(path), JOB_TYPES).open()
    capsys.readouterr()
    assert main(["webhooks", *arguments, "--url", f"sqlite:///{path}", "--json"]) == code
    out = capsys.readouterr().out
    return json.loads(out) if out else None


def test_the_command_line_makes_and_manages_webhooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.db"
    made = _run(capsys, path, "create", URL, "--event", "chain.failed", "--type", "double", "--attribute", "user=17")
    assert (made["events"], made["job_types"], made["attributes"]) == (["chain.failed"], ["double"], {"user": "17"})
    several = _run(capsys, path, "create", URL, "--attribute", "tag=a", "--attribute", "user=1", "--attribute", "tag=b")
    assert several["attributes"] == {"tag": ["a", "b"], "user": "1"}
    _run(capsys, path, "delete", several["id"], "--yes")
    assert made["secret"].startswith("whsec_")
    [listed] = _run(capsys, path, "list")["items"]
    assert listed["id"] == made["id"]
    assert made["secret"] not in json.dumps(listed)
    assert listed["secret_ends"] == [made["secret"][-4:]]
    rotated = _run(capsys, path, "rotate", made["id"])
    assert rotated["secret_ends"] == [rotated["secret"][-4:], made["secret"][-4:]]
    disabled = _run(capsys, path, "disable", made["id"], "--reason", "maintenance")
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "maintenance")
    assert _run(capsys, path, "enable", made["id"])["enabled"]
    ping = _run(capsys, path, "ping", made["id"])["delivery"]
    assert _run(capsys, path, "replay", made["id"], "--delivery", ping) == {"replayed": 1}
    assert _run(capsys, path, "replay", made["id"], "--since", "1h", "--all") == {"replayed": 0}
    assert _run(capsys, path, "deliveries", made["id"]) == {"items": [], "next_cursor": None}
    _run(capsys, path, "replay", made["id"], code=2)
    _run(capsys, path, "delete", made["id"], code=2)
    assert _run(capsys, path, "delete", made["id"], "--yes") == {"deleted": made["id"]}
    _run(capsys, path, "ping", made["id"], code=1)
    _run(capsys, path, "create", "https://10.0.0.1:x/", code=2)


def test_a_sync_client_does_the_same(tmp_path: Path) -> None:
    with Client(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES) as client:
        chosen = new_secret()
        made = client.create_webhook(URL, secret=chosen, headers={"authorization": "Bearer hidden"}, description="ours")
        assert made.secret == chosen
        shown = client.get_webhook(made.webhook.id)
        assert (shown.headers, shown.description, shown.circuit) == (("authorization",), "ours", "closed")
        assert "hidden" not in repr(shown) + repr(made)
        assert chosen not in repr(shown) + repr(made)
        changed = client.change_webhook(
            made.webhook.id, url=f"{URL}/2", events=["job.retried"], job_types=[double], payloads=True
        )
        assert (changed.url, changed.filter.events, changed.filter.job_types) == (
            f"{URL}/2", ("job.retried",), ("double",)
        )  # fmt: skip
        assert client.change_webhook(made.webhook.id, job_types=[]).filter.job_types is None
        assert client.replay_webhook(made.webhook.id, since=datetime.now(UTC)) == 0


def test_a_change_that_would_select_deletions_by_attributes_is_refused(tmp_path: Path) -> None:
    """They are deleted with their chain."""
    with Client(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES) as client:
        of_deletions = client.create_webhook(URL, events=["job.deleted"])
        of_a_customer = client.create_webhook(URL, attributes={"customer": 17})
        changes: list[tuple[NewWebhook, dict[str, Any]]] = [
            (of_deletions, {"attributes": {"customer": 17}}), (of_a_customer, {"events": ["job.deleted"]})
        ]  # fmt: skip
        for made, change in changes:
            with pytest.raises(ConfigurationError, match="must have no attributes"):
                client.change_webhook(made.webhook.id, **change)
            assert client.get_webhook(made.webhook.id).filter == made.webhook.filter
        client.change_webhook(of_a_customer.webhook.id, events=["job.deleted"], attributes={})


async def test_over_http_secrets_are_shown_once_and_answers_with_payloads_only(tmp_path: Path) -> None:
    async with AsyncClient(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES) as client:
        access = {"it": FULL_ACCESS}
        transport = httpx.ASGITransport(WebApp(client, access=lambda request: access["it"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://queue.test") as http:
            made = (await http.post("/webhooks", json={"url": URL, "headers": {"x-key": "hidden"}})).json()
            path = f"/webhooks/{made['id']}"
            rotated = (await http.post(f"{path}/rotate", json={})).json()
            store = await client._open_store()
            answered = NewWebhookAttempt(made["id"], "evt_1", "chain.failed", 1, 500, "http", 0.5, 5.0, "an answer")
            await store.record_webhook_attempts([answered])
            texts = [(await http.get(one)).text for one in ("/webhooks", path, f"{path}/deliveries")]
            for hidden in (made["secret"], rotated["secret"], "hidden"):
                assert all(hidden not in text for text in texts)
            assert "an answer" in texts[2]
            access["it"] = Access([Action.READ])
            [shown] = (await http.get(f"{path}/deliveries")).json()["items"]
            assert "response" not in shown
            assert (shown["status"], shown["error"], shown["retry_in"]) == (500, "http", 5.0)
            access["it"] = FULL_ACCESS
            assert (await http.post(f"{path}/replay", json={})).status_code == 422
            assert (await http.post("/webhooks/wh_0/ping", json={})).status_code == 404
            assert (await http.post("/webhooks", json={"url": "https://127.0.0.1:x/"})).status_code == 422


async def test_secrets_are_encrypted_where_the_client_has_a_format(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    sealed = PayloadFormat(codecs=[EncryptionCodec([NEW_KEY])])
    async with AsyncClient(SQLiteState(path), JOB_TYPES, webhook_format=sealed) as client:
        made = await client.create_webhook(URL, headers={"authorization": "Bearer hidden"})
        other_one = await client.create_webhook(URL)
        assert (await client.list_webhooks())[0].url == URL
        store = await client._open_store()
        records = await store.get_webhook_records("endpoint")
        for hidden in (made.secret, made.secret.removeprefix("whsec_"), "hidden"):
            assert all(hidden not in one.body for one in records)
        first, second = (json.loads(one.body) for one in records)
        first["secret"] = second["secret"]
        swapped = replace(records[0], body=json.dumps(first))
        with pytest.raises(CodecError):
            client.webhook_codec.read(swapped)
        assert other_one.secret != made.secret
    async with AsyncClient(SQLiteState(path), JOB_TYPES) as without:
        assert {(one.url, one.secret_ends, one.headers) for one in await without.list_webhooks()} == {(URL, (), ())}
        assert not (await without.disable_webhook(made.webhook.id)).enabled
        with pytest.raises(CodecError):
            await without.rotate_webhook_secret(made.webhook.id)
    async with AsyncClient(SQLiteState(path), JOB_TYPES, webhook_format=sealed) as client:
        shown = await client.enable_webhook(made.webhook.id)
        assert (shown.enabled, shown.headers, shown.secret_ends) == (True, ("authorization",), (made.secret[-4:],))


async def test_the_dashboard_shows_webhooks_as_text_and_changes_them(tmp_path: Path) -> None:
    """What others chose (addresses, descriptions, answers) is text in the page, and no markup (S13)."""
    evil = "<img src=x onerror=alert(1)>"
    async with AsyncClient(SQLiteState(tmp_path / "jobs.db"), JOB_TYPES) as client:
        access = {"it": FULL_ACCESS}
        transport = httpx.ASGITransport(DashboardApp(client, access=lambda request: access["it"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://queue.test", follow_redirects=True) as http:
            assert "No webhooks." in (await http.get("/webhooks")).text
            made = await client.create_webhook(URL, description=evil)
            store = await client._open_store()
            ping = await client.ping_webhook(made.webhook.id)
            attempt = NewWebhookAttempt(made.webhook.id, ping, "webhook.ping", 1, 500, "http", 0.5, 5.0, evil)
            await store.record_webhook_attempts([attempt] * 60)
            pages = [(await http.get(path)).text for path in ("/webhooks", f"/webhook?id={made.webhook.id}")]
            for page in pages:
                assert evil not in page
                assert "&lt;img" in page
                assert made.secret not in page
            assert ">Older</a>" in pages[1]
            for change, notice in (
                ("disable", "The webhook is disabled."),
                ("enable", "The webhook is enabled."),
                ("ping", "A worker will send a ping."),
                ("replay", "Workers deliver again."),
            ):
                answer = await http.post(f"/webhooks/{change}", data={"id": made.webhook.id})
                assert notice in answer.text, answer.text
            await http.post("/webhooks/replay", data={"id": made.webhook.id, "delivery": ping})
            assert len((await client.list_chains(job_types=["queuert.webhook"])).items) == 3
            another = await client.create_webhook(URL)
            of_another = await client.ping_webhook(another.webhook.id)
            answer = await http.post("/webhooks/replay", data={"id": made.webhook.id, "delivery": of_another})
            assert answer.status_code == 422
            assert "the delivery must be one of webhook" in answer.text
            assert (await http.post("/webhooks/ping", data={"id": "wh_0"})).status_code == 404
            access["it"] = Access([Action.READ])
            shown = (await http.get(f"/webhook?id={made.webhook.id}")).text
            assert "&lt;img" not in shown.partition("Deliveries")[2], "answers need read_payloads"
            assert "<button" not in shown.partition("<main")[2]
