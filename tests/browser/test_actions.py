"""Each change in Chromium: with its action it is offered and made, without it is neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from queuert import NewChain, RecurringSchedule, after
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.types import NewJob
from queuert.state.webhooks import NewWebhookAttempt
from queuert.testing.shop.job_types import nightly_report, order, restock
from queuert.web import Action
from queuert.web.dashboard.routes import PAGES
from queuert.webhooks.deliveries import Delivery
from tests.browser.conftest import Visit
from tests.browser.shop import Shop, quick_processors


@dataclass(frozen=True)
class Change:
    """A change: where it is offered, how it is made, and how one sees that it was made.

    ``prepare`` makes what is changed, and returns its name. ``page`` and ``offered`` have it in braces.
    """

    route: str
    action: Action
    prepare: Callable[[Shop], str]
    page: str
    offered: str
    """The accessible name of the button or the link that leads to it."""
    made: Callable[[Shop, str], bool]
    steps: Callable[[Page], None] | None = None
    """What is done on the page that the link leads to."""
    also: tuple[Action, ...] = ()
    """Other actions that it needs."""
    before: Callable[[Page], object] | None = None
    """What is chosen before it is made."""


def waiting(shop: Shop) -> str:
    return shop.start(NewChain(restock, "nothing"))[0]


def scheduled(shop: Shop) -> str:
    return shop.start(NewChain(restock, "nothing", run_at=after(hours=3)))[0]


def failed(shop: Shop) -> str:
    chain = waiting(shop)
    shop.run(shop.client.cancel_chain(chain))
    return chain


def of_type(shop: Shop) -> str:
    waiting(shop)
    return "restock"


def schedule(shop: Shop) -> str:
    shop.run(shop.client.put_schedules([RecurringSchedule("tried", nightly_report, "all", cron="0 0 1 1 *")]))
    return "tried"


def paused_schedule(shop: Shop) -> str:
    shop.run(shop.client.pause_schedules([schedule(shop)]))
    return "tried"


def paused_type(shop: Shop) -> str:
    shop.run(shop.client.pause_job_types([of_type(shop)]))
    return "restock"


def tried(shop: Shop) -> Any:
    return next((one for one in shop.run(shop.client.list_schedules()) if one.name == "tried"), None)


def is_paused(shop: Shop, name: str) -> bool:
    return name in {one.type for one in shop.run(shop.client.list_paused_job_types())}


def operations(shop: Shop, **wanted: Any) -> bool:
    found = shop.run(shop.client.list_bulk_operations()).items
    return any(all(getattr(one, name) == value for name, value in wanted.items()) for one in found)


def click(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=name).click()


def fill(label: str, value: str, *buttons: str) -> Callable[[Page], None]:
    def steps(page: Page) -> None:
        page.get_by_label(label).fill(value)
        for button in buttons:
            page.get_by_role("button", name=button).click()

    return steps


def webhook(shop: Shop) -> str:
    return shop.run(shop.client.create_webhook("https://example.com/hook")).webhook.id


def disabled_webhook(shop: Shop) -> str:
    return shop.run(shop.client.disable_webhook(webhook(shop))).id


def attempted_webhook(shop: Shop) -> str:
    """With a delivery that is in the log, and whose chain is kept."""
    id = webhook(shop)
    shop.run(_attempted(shop, id))
    return id


async def _attempted(shop: Shop, id: str) -> None:
    store = await shop.client._open_store()
    delivery = Delivery(id, f"evt_tried-{id}", "chain.failed", "{}")
    await store.start_jobs([delivery.job(await shop.client._webhook_key(store))])
    await shop.client.cancel_chain(delivery.id)
    attempt = NewWebhookAttempt(id, delivery.id, delivery.event_type, 1, 500, "http", 0.1, None, None)
    await store.record_webhook_attempts([attempt])


def is_enabled(shop: Shop, id: str) -> bool:
    return shop.run(shop.client.get_webhook(id)).enabled


def delivers(shop: Shop, part: str) -> bool:
    """Whether a delivery with this part of its id was started and is open; it is deleted, as no worker makes it."""
    page = shop.run(shop.client.list_chains(job_types=["queuert.webhook"], statuses=["open"]))
    found = [chain.id for chain in page if part in chain.id]
    if found:
        shop.run(shop.client.delete_chains(found))
    return bool(found)


def job(shop: Shop, id: str) -> Any:
    return shop.run(shop.client.get_job(id))


CHANGES = (
    Change("/chain/cancel", Action.CANCEL, waiting, "/chain?id={}", "Cancel…",
           lambda shop, id: shop.status(id) is ChainStatus.CANCELLED, click("Cancel the chain")),
    Change("/chain/retry", Action.RETRY, failed, "/chain?id={}", "Retry",
           lambda shop, id: shop.status(id) is ChainStatus.OPEN),
    Change("/chain/edit", Action.CHANGE, failed, "/chain?id={}", "Retry with another input…",
           lambda shop, id: job(shop, id).input == "shelf", fill("Input, as JSON", '"shelf"', "Retry with this input"),
           (Action.READ_PAYLOADS,)),
    Change("/chain/complete", Action.COMPLETE, waiting, "/chain?id={}", "Complete…",
           lambda shop, id: shop.status(id) is ChainStatus.COMPLETED, click("Complete the chain")),
    Change("/chain/change", Action.CHANGE, scheduled, "/chain?id={}", "Due time or priority…",
           lambda shop, id: job(shop, id).priority == 7, fill("Priority", "7", "Continue", "Change")),
    Change("/chain/delete", Action.DELETE, waiting, "/chain?id={}", "Delete…",
           lambda shop, id: not shop.exists(id), click("Delete the chain")),
    Change("/job/trigger", Action.TRIGGER, scheduled, "/job?id={}", "Run now",
           lambda shop, id: job(shop, id).status is JobStatus.READY),
    Change("/types/pause", Action.PAUSE, of_type, "/type?name={}", "Pause type",
           is_paused),
    Change("/types/resume", Action.PAUSE, paused_type, "/type?name={}", "Resume type",
           lambda shop, name: not is_paused(shop, name)),
    Change("/types/event-level", Action.CHANGE, lambda shop: "picture", "/type?name={}", "Set",
           lambda shop, name: name in shop.run(shop.client.get_event_log()).levels,
           before=lambda page: page.get_by_label("Event level").select_option("terminal")),
    Change("/schedules/pause", Action.PAUSE, schedule, "/schedules", "Pause {}", lambda shop, _: tried(shop).paused),
    Change("/schedules/resume", Action.PAUSE, paused_schedule, "/schedules", "Resume {}",
           lambda shop, _: not tried(shop).paused),
    Change("/schedules/run", Action.TRIGGER, schedule, "/schedules", "Run {} now",
           lambda shop, _: tried(shop).last_chain_id is not None),
    Change("/schedules/delete", Action.DELETE, schedule, "/schedules", "Delete {}",
           lambda shop, _: tried(shop) is None, click("Delete the schedule")),
    Change("/webhooks/disable", Action.EDIT_WEBHOOKS, webhook, "/webhook?id={}", "Disable",
           lambda shop, id: not is_enabled(shop, id)),
    Change("/webhooks/enable", Action.EDIT_WEBHOOKS, disabled_webhook, "/webhook?id={}", "Enable", is_enabled),
    Change("/webhooks/ping", Action.REPLAY_WEBHOOKS, webhook, "/webhook?id={}", "Ping",
           delivers),
    Change("/webhooks/replay", Action.REPLAY_WEBHOOKS, attempted_webhook, "/webhook?id={}", "Replay evt_tried-{}",
           delivers),
    Change("/failures/retry", Action.RETRY, lambda shop: "order", "/failures?type={}", "Retry order: tests.browser",
           lambda shop, _: operations(shop, error_summary=DECLINED, job_types=("order",)), click("Retry 7 chains"),
           (Action.READ_PAYLOADS,)),
    Change("/operations/start", Action.CANCEL, of_type, "/chains?type={}&status=open&attribute=none%3Dhere",
           "Cancel all that match…", lambda shop, _: False),
)  # fmt: skip

DECLINED = "tests.browser.shop.CardDeclined: the bank refused the card: insufficient funds"

APART = {"/chains/selected", "/chain/send-event", "/chain/retry-together"}
"""Changes that tests of their own make."""


def test_all_changes_are_here() -> None:
    posts = {page.path for page in PAGES if page.method == "POST"}
    assert {change.route for change in CHANGES} | APART == posts


def control(page: Page, name: str) -> Any:
    """The button or the link of a name."""
    exact = not name.endswith(("browser",))
    return page.get_by_role("button", name=name, exact=exact).or_(page.get_by_role("link", name=name, exact=exact))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.route)
def test_a_change_needs_its_action(visit: Visit, shop: Shop, change: Change) -> None:
    name = change.prepare(shop)
    needed = {Action.READ, change.action, *change.also}
    offered = change.offered.format(name)
    # All actions but its own: it is not offered, and a program in the browser cannot make it.
    others = ",".join(sorted(set(Action) - {change.action}))
    page = visit(others).open(change.page.format(name))
    expect(control(page, offered)).to_have_count(0)
    body = f"id={name}&name={name}&type={name}&action=cancel&output=null&input=1&priority=1&level=off"
    send = """([path, body]) => fetch(path, {method: 'POST', body, redirect: 'manual',
        headers: {'Content-Type': 'application/x-www-form-urlencoded'}}).then(answer => answer.status)"""
    assert page.evaluate(send, [change.route, body]) == 403
    assert not change.made(shop, name)
    # With it alone it is offered, and made.
    page = visit(",".join(sorted(needed))).open(change.page.format(name))
    if change.route == "/operations/start":
        control(page, offered).first.click()
        expect(page.get_by_role("button", name="Cancel 0 chains")).to_be_disabled()
        return
    if change.before is not None:
        change.before(page)
    control(page, offered).first.click()
    if change.steps is not None:
        change.steps(page)
    expect(page.locator(".notice")).to_be_visible()
    assert change.made(shop, name)


@pytest.mark.parametrize("path", [page.path for page in PAGES if page.method == "GET"])
def test_nobody_sees_a_page_without_access(visit: Visit, path: str) -> None:
    page = visit("none").open(path)
    assert page.get_by_role("heading").first.inner_text() == "Forbidden"
    assert page.locator("nav").count() == 0


def test_selected_chains_are_cancelled_together(visit: Visit, shop: Shop) -> None:
    ids = shop.start(*[NewChain(restock, "selected", attributes={"batch": "selected"}) for _ in range(3)])
    page = visit("read,cancel").open("/chains?attribute=batch%3Dselected")
    for id in ids[:2]:
        page.get_by_label(f"Select {id}").check()
    expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("button", name="Cancel 2 chains").click()
    expect(page.locator(".notice")).to_have_text("The selected chains were cancelled.")
    assert [shop.status(id) for id in ids] == [ChainStatus.CANCELLED, ChainStatus.CANCELLED, ChainStatus.OPEN]
    send = """([ids, action]) => fetch('/chains/selected', {method: 'POST', redirect: 'manual',
        body: new URLSearchParams([...ids.map(id => ['id', id]), ['action', action]])}).then(answer => answer.status)"""
    assert page.evaluate(send, [ids, "delete"]) == 403
    assert all(map(shop.exists, ids))


def test_a_page_of_another_site_changes_nothing(visit: Visit, shop: Shop) -> None:
    id = waiting(shop)
    visitor = visit()
    port = shop.address.rpartition(":")[2]
    page = visitor.page
    page.goto(f"http://localhost:{port}/elsewhere?id={id}")
    page.get_by_role("button", name="Win a prize").click()
    expect(page.get_by_role("alert")).to_contain_text("a page of another site must not send this request")
    assert shop.status(id) is ChainStatus.OPEN


def test_a_refused_change_says_why(visit: Visit, shop: Shop) -> None:
    id = waiting(shop)
    page = visit().open(f"/chain/complete?id={id}")
    page.get_by_label("Output, as JSON").fill("{")
    page.get_by_role("button", name="Complete the chain").click()
    expect(page.get_by_role("alert")).to_contain_text("output must be JSON")
    shop.run(shop.client.cancel_chain(id))
    page = visit().open(f"/chain/cancel?id={id}")
    page.get_by_role("button", name="Cancel the chain").click()
    expect(page.locator(".notice")).to_contain_text("Nothing was cancelled")


def test_hostile_ids_and_payloads_are_only_text(visit: Visit, shop: Shop) -> None:
    hostile = "</a>../..\"'<script>document.title='broken'</script>\u202eevil 🎈%2F?#&"

    async def start() -> None:
        store = shop.client.state.async_store(max_connections=1)
        await store.open()
        await store.start_jobs(
            [NewJob(id, order.name, '{"a": 1e400, "b": "\\u0000<img src=x onerror=alert(1)>"}'.replace("\\u0000", " "))
             for id in (hostile, "..", ".", "a/b")]
        )  # fmt: skip
        await store.aclose()

    shop.run(start())
    visitor = visit()
    for id in (hostile, "..", ".", "a/b"):
        page = visitor.open("/chains?type=order")
        page.get_by_role("searchbox").fill(id)
        page.keyboard.press("Enter")
        page.wait_for_url("**/chain?**")
        assert page.locator("h1").inner_text().strip() == id
        assert "broken" not in page.title() or id == hostile
        assert page.locator("img[src=x]").count() == 0
    shop.run(shop.client.delete_chains([hostile, "..", ".", "a/b"]))


def test_an_event_is_sent_to_a_chain_that_waits_for_it(visit: Visit, shop: Shop) -> None:
    [waits, *_] = shop.run(shop.client.list_chains(job_types=["refund"], statuses=["open"])).items
    page = visit("read,complete").open(f"/chain?id={waits.id}")
    page.get_by_role("link", name="Send approval…").click()
    expect(page.get_by_label("Name")).to_have_value("approval")
    page.get_by_label("Payload, as JSON").fill('"yes"')
    page.get_by_role("button", name="Send the event").click()
    expect(page.locator(".notice")).to_be_visible()
    with shop.worker(quick_processors()):
        shop.run(shop.client.wait([waits], timeout=30))
    assert shop.status(waits.id) is ChainStatus.COMPLETED
