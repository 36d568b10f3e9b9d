"""Pages that refresh themselves in Chromium: politely, or not at all; and the keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from queuert import NewChain
from queuert.state.webhooks import NewWebhookAttempt
from queuert.testing.shop.job_types import Order, order, restock
from queuert.web.dashboard.pages import chains as chains_page
from queuert.web.dashboard.pages import shared
from tests.browser.conftest import Visit, Visitor
from tests.browser.shop import LEVEL, Shop


def row_ids(page: Page) -> list[str]:
    """The ids of the rows of a list."""
    found: list[str] = page.eval_on_selector_all("tr[data-row]", "all => all.map(row => row.id)")
    return found


def live(visitor: Visitor, path: str) -> Page:
    """A page that listens."""
    page = visitor.open(path)
    expect(page.locator(".live-text")).to_have_text("Live")
    return page


def start(shop: Shop, count: int = 1) -> list[str]:
    return shop.start(*[NewChain(restock, "live", attributes={"of": "live"}) for _ in range(count)])


def delete_all(shop: Shop) -> None:
    """Delete what other tests have started."""
    found = shop.run(shop.client.list_chains(job_types=["restock"], attributes={"of": "live"}, limit=1_000))
    shop.run(shop.client.delete_chains([one.id for one in found.items]))


LIST = "/chains?attribute=of%3Dlive"


def test_a_list_says_how_many_are_new_and_moves_nothing(visit: Visit, shop: Shop) -> None:
    [first] = start(shop)
    page = live(visit(), LIST)
    before = row_ids(page)
    page.locator("tr[data-row]").first.hover()
    new = start(shop, 2)
    expect(page.get_by_role("button", name="2 new")).to_be_visible()
    assert row_ids(page) == before
    # What is there is updated in its place.
    shop.run(shop.client.cancel_chain(first))
    expect(page.locator("tr[data-row]", has_text=first[-6:]).locator(".pill").first).to_contain_text("cancelled")
    assert row_ids(page) == before
    page.get_by_role("button", name="2 new").click()
    expect(page.locator("tr[data-row]")).to_have_count(len(before) + 2)
    assert row_ids(page)[:2] == [f"row-{id}" for id in reversed(new)]
    expect(page.locator(".new-rows")).to_have_count(0)


def test_what_happens_before_the_stream_is_open_is_shown(visit: Visit, shop: Shop) -> None:
    start(shop)
    visitor = visit()
    # The page is not read again after a while.
    visitor.page.add_init_script("""
        const set = window.setTimeout;
        window.setTimeout = (call, after, ...more) => after >= 5000 ? 0 : set(call, after, ...more);""")
    new: list[str] = []

    def start_before(route: Route) -> None:
        if not new:
            new.extend(start(shop))
        route.continue_()

    visitor.page.route("**/live", start_before)
    page = live(visitor, LIST)
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    delete_all(shop)


def test_the_link_to_older_rows_follows_the_list(visit: Visit, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a list that was empty gets its buttons."""
    monkeypatch.setattr(chains_page, "PAGE", 3)

    def more(count: int) -> list[str]:
        return shop.start(*[NewChain(restock, "live", attributes={"of": "pages"}) for _ in range(count)])

    page = live(visit(), "/chains?attribute=of%3Dpages")
    expect(page.locator(".selection")).to_have_count(0)
    ids = more(2)
    expect(page.locator(".selection")).to_be_visible()
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    ids += more(3)
    page.get_by_role("button", name="3 new").click()
    page.get_by_role("heading", name="Chains").hover()
    seen = row_ids(page)
    assert len(seen) == 3
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**cursor=**")
    assert seen + row_ids(page) == [f"row-{id}" for id in reversed(ids)]
    shop.run(shop.client.delete_chains(ids))


def test_a_page_on_which_nothing_changes_is_read_less_often(visit: Visit, shop: Shop) -> None:
    [id] = shop.start(NewChain(restock, "waits", attributes={"of": "polling"}))
    visitor = visit()
    # As on a store without an event log.
    visitor.page.add_init_script("""document.addEventListener('readystatechange', () => {
        if (document.readyState === 'interactive') document.body.dataset.live = 'poll' })""")
    page = visitor.open(f"/chain?id={id}")
    expect(page.locator(".live-text")).to_have_text("Refreshing every 5 s")
    expect(page.locator(".live-text")).to_have_text(re.compile("Refreshing every [1246]0 s"))
    shop.run(shop.client.cancel_chain(id))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".title .pill")).to_contain_text("cancelled")
    expect(page.locator(".live-text")).to_have_text("Refreshing every 5 s")


def test_a_page_is_read_once_in_a_second_at_most(visit: Visit, shop: Shop) -> None:
    start(shop)
    visitor = visit()
    visitor.page.add_init_script("""
        window.streams = [];
        window.EventSource = class extends EventSource {
            constructor(address) { super(address); window.streams.push(this); }
        };""")
    page = live(visitor, LIST)
    found = page.evaluate("""async () => {
        // Only what the test says happens from here on.
        stop();
        while (reading) await new Promise(done => requestAnimationFrame(done));
        const [pages, later] = [[], []];
        const text = document.documentElement.outerHTML;
        window.setTimeout = (call, after) => later.push([call, after]);
        window.clearTimeout = () => {};
        performance.now = () => 1e9;
        window.fetch = async () => { pages.push('read'); return new Response(text) };
        for (let number = 0; number < 3; number++) {
            window.streams.at(-1).dispatchEvent(new Event('changed'));
            for (let turn = 0; turn < 50; turn++) await null;
            await new Promise(done => requestAnimationFrame(done));
        }
        return [pages.length, later.filter(([, after]) => after <= 1000).length];
    }""")
    assert found == [1, 1]


def test_paused_means_paused_and_a_tab_has_one_stream(visit: Visit, shop: Shop) -> None:
    start(shop)
    page, other = live(visit(), LIST), live(visit(), LIST)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".live-text")).to_have_text("Paused")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    start(shop)
    # The other page has heard of it; this one has not asked.
    expect(other.get_by_role("button", name="1 new")).to_be_visible()
    assert requests == []
    page.goto(page.url)
    expect(page.locator(".live-text")).to_have_text("Paused")
    assert not [one for one in requests if "/live" in one]
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".live-text")).to_have_text("Live")
    assert len([one for one in requests if "/live" in one]) == 1


def test_a_hidden_tab_is_silent_and_reads_once_when_it_is_seen(visit: Visit, shop: Shop) -> None:
    start(shop)
    page, other = live(visit(), LIST), live(visit(), LIST)
    hide = """hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange')) }"""
    page.evaluate(hide, True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    start(shop)
    expect(other.get_by_role("button", name="1 new")).to_be_visible()
    assert requests == []
    page.evaluate(hide, False)
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    assert sum("/live" in one for one in requests) == 1


def test_a_lost_connection_is_opened_again_and_the_page_read(visit: Visit, shop: Shop) -> None:
    start(shop)
    page, other = live(visit(), LIST), live(visit(), LIST)
    shop.dashboard._live.stop()
    expect(page.locator(".live-text")).not_to_have_text("Live")
    shop.dashboard._live._stopped = False
    start(shop)
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    other.reload()
    expect(other.locator(".live-text")).to_have_text("Live")


def test_a_session_that_has_ended_stops_the_page(visit: Visit, shop: Shop) -> None:
    visitor = visit()
    page = live(visitor, LIST)
    page.context.set_extra_http_headers({LEVEL: "none"})
    start(shop)
    expect(page.locator(".live-text")).to_contain_text("The session has ended")
    assert page.get_by_role("heading", name="Chains").is_visible()


def test_what_is_under_the_pointer_keeps_its_shape(visit: Visit, shop: Shop) -> None:
    page = live(visit(), "/")
    warnings, ready = page.locator(".warnings"), page.locator(".stats dd").first
    warnings.locator("p").first.hover()
    count, shown = warnings.locator("p").count(), ready.inner_text()
    shop.run(shop.client.pause_job_types(["pack"], by="maria"))
    try:
        start(shop, 3)
        expect(ready).not_to_have_text(shown)
        assert warnings.locator("p").count() == count
        page.get_by_role("heading", name="Overview").hover()
        start(shop)
        expect(warnings).to_contain_text("pack was paused")
    finally:
        shop.run(shop.client.resume_job_types(["pack"]))


def test_what_was_opened_or_typed_stays(visit: Visit, shop: Shop) -> None:
    [id] = start(shop)
    page = live(visit(), LIST)
    page.get_by_label(f"Select {id}").check()
    page.get_by_label("Attributes").fill("half typed")
    start(shop)
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    page.get_by_role("button", name="1 new").click()
    assert page.get_by_label(f"Select {id}").is_checked()
    assert page.get_by_label("Attributes").input_value() == "half typed"


def test_events_flow_while_the_pointer_is_elsewhere(visit: Visit, shop: Shop) -> None:
    page = live(visit(), "/events?type=restock")
    page.get_by_role("heading", name="Events").hover()
    [id] = start(shop)
    expect(page.locator("tr[data-row]").first).to_contain_text(id[-6:])
    page.locator("tr[data-row]").first.hover()
    start(shop)
    expect(page.get_by_role("button", name=re.compile("new"))).to_be_visible()
    expect(page.locator("tr[data-row]").first).to_contain_text(id[-6:])


def test_the_page_of_a_chain_follows_it_to_its_end(visit: Visit, shop: Shop) -> None:
    [id] = shop.start(NewChain(order, Order(number=1, customer="ada", cents=1), id="followed"))
    page = live(visit(), f"/chain?id={id}")
    assert page.locator(".title .pill").inner_text().strip().endswith("open")
    with shop.worker():
        expect(page.locator(".title .pill")).to_contain_text("completed")
    expect(page.locator("[data-region=jobs] tbody tr")).to_have_count(4)
    expect(page.locator(".graph .node")).to_have_count(4)
    expect(page.get_by_role("region", name="Output")).to_contain_text("JD1")


def test_keys_lead_everywhere(visit: Visit, shop: Shop) -> None:
    start(shop, 2)
    page = visit().open("/")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_url("**/chains")
    page.goto(page.url + "?attribute=of%3Dlive")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("tr[data-row]").nth(1).get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("k")
    first = row_ids(page)[0].removeprefix("row-")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/chain?id={first}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("gc?")
    expect(page.get_by_role("searchbox")).to_have_value("gc?")
    assert page.get_by_role("dialog").count() == 0


def test_a_mark_of_a_chart_says_what_it_is(visit: Visit) -> None:
    page = visit().open("/type?name=charge&span=6h")
    page.locator("[data-region=rates] .hit").nth(40).hover()
    expect(page.locator(".tip")).to_contain_text("finished")


def test_a_row_of_a_webhook_keeps_its_own_form(visit: Visit, shop: Shop) -> None:
    """What its button sends is the delivery that the row shows, also after a newer one has come."""
    made = shop.run(shop.client.create_webhook("https://example.com/rows"))
    id = made.webhook.id

    async def record(delivery: str) -> None:
        store = await shop.client._open_store()
        attempt = NewWebhookAttempt(id, delivery, "chain.failed", 1, 500, "http", 0.1, None, None)
        await store.record_webhook_attempts([attempt])

    for number in range(2):
        shop.run(record(f"evt_{number}-{id}"))
    page = live(visit(), f"/webhook?id={id}")
    rows = page.locator("[data-region=deliveries] tbody tr")
    first = rows.first.element_handle()
    shop.run(record(f"evt_2-{id}"))
    start(shop)
    expect(rows).to_have_count(3)
    for number in range(3):
        row = rows.nth(2 - number)
        expect(row.locator("a.id")).to_have_attribute("title", f"evt_{number}-{id}")
        expect(row.locator("input[name=delivery]")).to_have_value(f"evt_{number}-{id}")
    assert first.evaluate("row => row.querySelector('a.id').title") == f"evt_1-{id}", "it is the same row"
    # A field of a row that stays where it is.
    field = rows.first.locator("input[name=delivery]")
    field.evaluate("one => one.setAttribute('value', 'an older one')")
    start(shop)
    expect(field).to_have_value(f"evt_2-{id}")
    shop.run(shop.client.delete_webhook(id))


def test_a_page_is_live_again_after_a_failure(visit: Visit, shop: Shop) -> None:
    page = live(visit(), LIST)
    page.route("**/chains?**", lambda route: route.abort())
    start(shop)
    expect(page.locator(".live-text")).to_have_text("The server does not answer")
    page.unroute("**/chains?**")
    start(shop)
    expect(page.locator(".live-text")).to_have_text("Live")


@pytest.mark.parametrize(
    ("status", "says"),
    [(400, "The request was refused: read the page again"), (503, "The server answers with an error")],
)
def test_a_refusal_is_no_dead_server(visit: Visit, shop: Shop, status: int, says: str) -> None:
    page = live(visit(), LIST)
    page.route("**/chains?**", lambda route: route.fulfill(status=status, body="no"))
    start(shop)
    expect(page.locator(".live-text")).to_have_text(says)


def test_a_page_that_was_refused_says_nothing_of_the_server(visit: Visit) -> None:
    page = visit().open("/chains?since=yesterday")
    expect(page.get_by_role("alert")).to_contain_text("a time must be such as")
    expect(page.get_by_label("Since")).to_have_value("yesterday")
    expect(page.locator(".live")).to_be_hidden()


def test_a_stream_that_a_proxy_refuses_is_opened_again(visit: Visit, shop: Shop) -> None:
    """A browser gives such a stream up for good. What has changed meanwhile is shown when it is open again."""
    [id] = start(shop)
    page = live(visit(), f"/chain?id={id}")
    # Until then the page cannot be read, and it does not read itself later, by its own clock.
    page.evaluate("""() => {
        const [read, later, Stream] = [window.fetch, window.setTimeout, window.EventSource];
        let opened = false;
        window.fetch = (...all) => opened ? read(...all) : Promise.reject(new Error('refused'));
        window.setTimeout = (call, after) => opened && after > 1000 ? 0 : later(call, after);
        window.EventSource = class extends Stream {
            constructor(address) { super(address); this.addEventListener('open', () => { opened = true }) }
        };
    }""")
    page.route("**/live?**", lambda route: route.fulfill(status=502))
    shop.dashboard._live.stop()
    expect(page.locator(".live-text")).to_have_text("Refreshing now and then")
    shop.run(shop.client.cancel_chain(id))
    shop.dashboard._live._stopped = False
    page.unroute("**/live?**")
    expect(page.locator(".live-text")).to_have_text("Live")
    expect(page.locator(".title .pill")).to_contain_text("cancelled")


def test_rows_under_the_pointer_keep_their_order(visit: Visit, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "COUNTS_AGE", 0.0)
    delete_all(shop)
    start(shop)
    page = live(visit(), "/types?sort=ready")
    ids = "all => all.map(row => row.id)"
    rows = page.locator("[data-region=types] tbody tr")
    before = rows.evaluate_all(ids)
    last = before.index("type-restock")
    assert last > 0, "another type has more ready jobs"
    rows.nth(last).hover()
    shown = rows.nth(last).inner_text()
    start(shop, 110)
    expect(rows.nth(last)).not_to_have_text(shown)
    expect(rows.nth(last).locator("td").nth(3)).to_have_text(re.compile("1\\d\\d"))
    assert rows.evaluate_all(ids) == before
    page.get_by_role("heading", name="Job types").hover()
    start(shop)
    expect(rows.first).to_have_id("type-restock")
    delete_all(shop)


def test_the_page_of_a_type_and_of_a_webhook_follow_their_state(visit: Visit, shop: Shop) -> None:
    page = live(visit(), "/type?name=restock")
    id = shop.run(shop.client.create_webhook("https://example.com/state")).webhook.id
    other = live(visit(), f"/webhook?id={id}")
    shop.run(shop.client.pause_job_types(["restock"], by="maria", reason="the shelf is full"))
    shop.run(shop.client.disable_webhook(id, reason="by maria"))
    try:
        start(shop)
        expect(page.get_by_role("button", name="Resume type")).to_be_visible()
        expect(page.get_by_role("button", name="Pause type")).to_have_count(0)
        expect(page.locator("main")).to_contain_text("paused by maria: the shelf is full")
        expect(other.get_by_role("button", name="Enable")).to_be_visible()
        expect(other.locator("main")).to_contain_text("disabled: by maria")
    finally:
        shop.run(shop.client.resume_job_types(["restock"]))
        shop.run(shop.client.delete_webhook(id))
    start(shop)
    expect(page.locator("main")).not_to_contain_text("paused by maria")


def test_the_output_of_a_job_comes_and_a_part_that_is_gone_goes(visit: Visit, shop: Shop) -> None:
    [id] = start(shop)
    [dependent] = shop.start(NewChain(restock, "waits", blockers=[id], attributes={"of": "live"}))
    page, job = live(visit(), f"/chain?id={id}"), live(visit(), f"/job?id={id}")
    expect(page.get_by_role("heading", name="Jobs that wait for this chain, or have waited")).to_be_visible()
    page.locator("[data-region=facts]").hover()
    shop.run(shop.client.delete_chains([dependent]))
    shop.run(shop.client.complete_chain(id, None, expecting=restock))
    expect(page.locator(".title .pill")).to_contain_text("completed")
    expect(page.get_by_role("region", name="Output")).to_be_visible()
    expect(job.get_by_role("region", name="Output")).to_be_visible()
    # Nothing moves under the pointer.
    page.get_by_role("button", name="The page has changed").click()
    expect(page.get_by_role("heading", name="Jobs that wait for this chain, or have waited")).to_have_count(0)
