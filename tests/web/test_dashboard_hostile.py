"""Whatever a name, an error or a payload contains, a page shows it as text, and is made."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from queuert import NewChain, Outcome, RecurringSchedule, RetryPolicy
from queuert.ids import new_token
from queuert.state.types import ClaimRequest, NewJob
from queuert.workers import WorkerHeartbeat
from tests.support.harness import Harness
from tests.support.job_types import anything
from tests.support.waiting import WAIT
from tests.web.applications import Http
from tests.web.test_dashboard import dashboard, read

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}${7*7}../%2e%2e/?#&amp;\u202e🎈"
"""A name that is allowed wherever names are: no control characters, and not too long."""

PAGES = (
    "/", "/?span=6h", "/chains", "/chains?status=failed", "/jobs", "/jobs?status=running", "/failures", "/types",
    "/workers", "/schedules", "/webhooks", "/operations", "/events", "/system",
)  # fmt: skip


class Markup(HTMLParser):
    """Notes markup that no template has."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script" and "src" not in given:
            self.wrong.append("a script in the page")
        if tag == "img" and not str(given["src"]).startswith("/static/"):
            self.wrong.append(f"a picture of {given['src']}")
        self.wrong += [f"{tag} {name}" for name in given if name.startswith(("on", "style"))]
        self.wrong += [str(value) for value in given.values() if value and value.lower().startswith("javascript:")]


def check(page: str, path: str) -> None:
    """Nothing of it is markup, and nothing was computed."""
    parser = Markup()
    parser.feed(page)
    assert parser.wrong == [], path


async def test_names_errors_and_payloads_are_text(harness: Harness, http: Http) -> None:
    store = harness.client.state.async_store(max_connections=1)
    await store.open()
    try:
        jobs = [
            NewJob(f"{EVIL}{n}", EVIL, '{"a": "<script>alert(1)</script>", "big": 12345678901234567890123}',
                   limit_key=EVIL, attributes={EVIL[:32]: EVIL})
            for n in range(3)
        ]  # fmt: skip
        await store.start_jobs(jobs)
        worker = WorkerHeartbeat(
            id=EVIL, name=EVIL, host=EVIL, pid=1, version=EVIL, job_types=(EVIL,), concurrency=6, running=2, uptime=1.0
        )
        await store.record_heartbeat(worker, 60.0)
        await store.claim(ClaimRequest({EVIL: 60.0}, 1, EVIL, new_token()))
        await store.claim(ClaimRequest({EVIL: 60.0}, 1, f"{EVIL} gone", new_token()))
    finally:
        await store.aclose()
    await harness.client.put_schedules([RecurringSchedule(EVIL, anything, EVIL, cron="0 3 * * *")])
    await harness.client.pause_job_types([EVIL], reason=EVIL, by=EVIL)
    await harness.client.start_bulk_operation("retry", requested_by=EVIL, job_types=[EVIL], error=EVIL)

    async def handler(attempt: Any) -> Outcome[Any]:
        raise ValueError(f"{EVIL}\n{EVIL}")

    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=1))
    failed = await harness.client.start_chain(anything, EVIL, attributes={"note": EVIL})
    async with harness.worker():
        await harness.client.wait([failed], timeout=WAIT)
    web = http(dashboard(harness, environment=EVIL), follow_redirects=True)
    for path in PAGES:
        answer = await web.get(path)
        if path == "/events" and answer.status_code == 501:
            continue
        assert answer.status_code == 200, (path, answer.text[-2000:])
        check(answer.text, path)
    for path, name in (("/type", EVIL), ("/worker", EVIL), ("/worker", f"{EVIL} gone")):
        check(await read(web, path, name=name), path)
    for id in (f"{EVIL}0", failed.id):
        for path in ("/chain", "/job", "/chain/cancel", "/chain/delete", "/chain/change", "/chain/complete"):
            check(await read(web, path, id=id), path)
    page = await read(web, "/chain", id=f"{EVIL}0")
    # A number is the text that the database has, whatever JavaScript would make of it.
    assert "12345678901234567890123" in page
    check(await read(web, "/schedules/delete", name=EVIL), "/schedules/delete")
    for query in ({"q": EVIL}, {"q": f"{EVIL}0"}, {"q": f"{EVIL}={EVIL}"}, {"q": "x" * 5_000}):
        answer = await web.get("/search", params=query)
        assert answer.status_code in (200, 400, 404, 422), answer.text[-2000:]
        check(answer.text, "/search")


@pytest.mark.parametrize(
    "path",
    [
        "/chains?since=9999999d", "/chains?since=9999-99-99", "/chains?since=0001-01-01T00:00", "/chains?cursor=x",
        "/chains?cursor=%00", "/chains?status=drop", "/chains?type=%00", "/chains?attribute=a%00=b", "/jobs?status=x",
        "/jobs?before=99999999999d", "/failures?since=-1d", "/?span=1000y", "/?sort=__class__", "/types?sort=%00",
        "/chain?id=%00", "/chain?id=", "/job?id=%ED%A0%80", "/type?name=%00", "/worker?name=%00", "/events?kind=drop",
        "/operations?cursor=x", "/operations/start?action=drop", "/chains/selected?action=retry&id=%00",
        "/schedules/delete?name=%00", "/static/%00", "/chain?id=" + "x" * 20_000, "/search?q=%00", "/@nobody/",
        "/chains?before=" + "9" * 400,
    ],
)  # fmt: skip
async def test_what_nobody_would_type_is_refused_with_a_reason(local: Harness, http: Http, path: str) -> None:
    await local.client.start_chains([NewChain(anything, 1)])
    answer = await http(dashboard(local)).get(path)
    assert answer.status_code < 500 or answer.status_code == 501, answer.text[-2000:]
    check(answer.text, path)
