"""Forms, keys, charts and paper in Chromium: what only a browser does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import Error, Page, Route, expect

from queuert import NewChain, RecurringSchedule
from queuert.testing.shop.job_types import nightly_report, restock
from tests.browser.conftest import Visit
from tests.browser.shop import Shop


def test_a_form_is_sent_once_and_again_after_a_return(visit: Visit, shop: Shop) -> None:
    shop.run(shop.client.put_schedules([RecurringSchedule("twice", nightly_report, "all", cron="0 0 1 1 *")]))
    page = visit().open("/schedules?name=twice")
    held: list[Route] = []
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()
        while waiting:
            waiting.pop().fulfill(body="")

    def in_flight(route: Route) -> None:
        if held:
            route.fulfill(body="")
        else:
            waiting.append(route)

    def clicked(route: Route) -> None:
        route.fulfill(body="")
        with suppress(Error):  # the browser has given it up for a second one
            held[0].continue_()

    page.route("**/schedules/pause", hold)
    page.route("**/in-flight", in_flight)
    page.route("**/clicked", clicked)
    # A second click while the first one is sent, before its answer is there.
    page.get_by_role("button", name="Pause twice").evaluate("""button => {
      button.click();
      fetch("in-flight").then(() => {
        button.disabled = false;
        button.click();
        fetch("clicked");
      });
    }""")
    expect(page.get_by_role("status").filter(has_text="The schedule is paused")).to_be_visible()
    assert len(held) == 1
    page.go_back()
    expect(page.locator("td.forms button").first).to_be_enabled()


def test_a_form_whose_request_was_stopped_can_be_sent_again(visit: Visit, shop: Shop) -> None:
    shop.run(shop.client.put_schedules([RecurringSchedule("stopped", nightly_report, "all", cron="0 0 1 1 *")]))
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open("/schedules?name=stopped")
    # An answer without a page: the browser stays where it is.
    page.route("**/schedules/pause", lambda route: route.fulfill(status=204))
    button = page.get_by_role("button", name="Pause stopped")
    with page.expect_response("**/schedules/pause"):
        button.click()
    page.clock.run_for(100)
    expect(button).to_be_disabled()
    page.clock.run_for(10_000)
    expect(button).to_be_enabled()
    page.unroute("**/schedules/pause")
    button.click()
    expect(page.get_by_role("status").filter(has_text="The schedule is paused")).to_be_visible()


def test_what_was_done_is_not_in_the_address(visit: Visit, shop: Shop) -> None:
    [id] = shop.start(NewChain(restock, "nothing"))
    shop.run(shop.client.cancel_chain(id))
    page = visit().open(f"/chain?id={id}")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="The chain was retried")).to_be_visible()
    expect(page).to_have_url(f"{page.url.split('/chain')[0]}/chain?id={id}")
    # Other tests count what is ready.
    shop.run(shop.client.delete_chains([id]))


def chosen(page: Page) -> int:
    return page.locator("tr.chosen").count()


@pytest.mark.parametrize("path", ["/", "/types", "/workers", "/schedules", "/webhooks", "/operations", "/failures"])
def test_rows_are_chosen_by_keys(visit: Visit, path: str) -> None:
    page = visit().open(path)
    assert chosen(page) == 0
    page.keyboard.press("j")
    assert chosen(page) == 1
    expect(page.locator("tr.chosen a:focus")).to_have_count(1)
    page.keyboard.press("?")
    assert "The next and the row before" in page.get_by_role("dialog").inner_text()
    assert "Select the row" not in page.get_by_role("dialog").inner_text(), "there is nothing to select"


def test_a_key_that_was_begun_is_forgotten(visit: Visit) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open("/jobs")
    page.keyboard.press("g")
    page.clock.run_for(2_500)
    page.keyboard.press("c")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.url.endswith("/jobs")


def test_the_values_of_a_chart_are_read_with_keys(visit: Visit) -> None:
    page = visit().open("/type?name=charge&span=6h")
    values = page.locator("[data-region=rates] .values")
    expect(values.get_by_role("table")).not_to_be_visible()
    values.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(values.get_by_role("table")).to_contain_text("failed or retried")
    # A new value changes nothing of what stands where.
    assert page.evaluate("""() => {
      const region = $("[data-region=rates]"), before = shape(region);
      $(".values tbody tr", region).remove();
      return shape(region) === before;
    }""")


CONTRAST = """
element => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const linear = (one) => one <= .03928 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4;
    const [r, g, b] = parse(text).map((one) => linear(one / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const style = getComputedStyle(element);
  return [style.backgroundColor, getComputedStyle(document.body).backgroundColor].map((back) => {
    const [a, b] = [light(style.borderTopColor), light(back)].sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  });
}
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_border_of_a_field_is_seen(visit: Visit, theme: str) -> None:
    """By WCAG 2.2, 1.4.11: 3 to 1 to what is on both sides of it."""
    page = visit(color_scheme=theme).open("/chains")
    assert min(page.locator("input[name=since]").evaluate(CONTRAST)) >= 3


def test_paper_is_light(visit: Visit) -> None:
    page = visit(color_scheme="dark").open("/")
    dark = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(dark) == "rgb(13, 15, 19)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(dark) == "rgb(246, 247, 249)"
    page.emulate_media(media="screen", color_scheme="light")
    page.get_by_role("button", name="Dark").click()
    page.wait_for_selector("html[data-theme=dark]")
    assert page.evaluate(dark) == "rgb(13, 15, 19)"
    page.emulate_media(media="print")
    assert page.evaluate(dark) == "rgb(246, 247, 249)"


def test_failed_has_an_outline_besides_its_color(visit: Visit) -> None:
    page = visit().open("/type?name=charge&span=6h")
    strokes = "kind => getComputedStyle(document.querySelector(`[data-region=rates] .b-${kind}`)).stroke"
    assert page.evaluate(strokes, "failed") != page.evaluate(strokes, "completed")


def test_what_is_selected_says_what_is_offered(visit: Visit, shop: Shop) -> None:
    shop.start(NewChain(restock, "nothing", id="to-select"))
    page = visit().open("/chains")
    retry, cancel = page.locator("button[value=retry]"), page.locator("button[value=cancel]")
    expect(retry).to_be_enabled()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label("Select to-select")).to_be_checked()
    expect(retry).to_be_disabled()
    page.keyboard.press("x")
    expect(retry).to_be_enabled()
    page.get_by_label("Select to-select").check()
    expect(retry).to_be_disabled()
    expect(cancel).to_be_enabled()
    page.get_by_label("Select to-select").uncheck()
    expect(retry).to_be_enabled()


def test_a_notice_that_is_over_goes(visit: Visit, shop: Shop) -> None:
    [id] = shop.start(NewChain(restock, "nothing"))
    visitor = visit()
    visitor.page.clock.install()
    with visitor.page.expect_response(lambda answer: answer.url.endswith(f"/chain?id={id}&notice=changed")):
        page = visitor.open(f"/chain?id={id}&notice=changed")
    expect(page.locator(".notice")).to_be_visible()
    expect(page.locator(".live-text")).to_have_text("Live")
    page.clock.run_for(10_000)
    expect(page.locator(".notice")).to_be_visible()
    shop.run(shop.client.cancel_chain(id))
    page.clock.run_for(10_000)
    expect(page.locator(".title .pill")).to_contain_text("cancelled")
    expect(page.locator(".notice")).to_have_count(0)


@pytest.mark.parametrize("path", ["/", "/types", "/workers"])
def test_what_a_row_says_is_in_sight_on_a_narrow_screen(visit: Visit, path: str) -> None:
    page = visit(viewport={"width": 320, "height": 800}).open(path)
    wide = """() => [...document.querySelectorAll(".cards")]
        .filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"""
    expect(page.locator(".cards tbody tr").first).to_be_visible()
    assert page.evaluate(wide) == []


def test_the_texts_of_a_chart_are_at_their_lines(visit: Visit) -> None:
    page = visit().open("/type?name=charge&span=6h")
    apart = """() => [...document.querySelectorAll(".plot")].flatMap(plot => {
        const middle = one => (one.getBoundingClientRect().top + one.getBoundingClientRect().bottom) / 2;
        const lines = [...plot.querySelectorAll(".grid-line")].map(middle);
        return [...plot.querySelectorAll(".y > *")].map((text, n) => Math.abs(middle(text) - lines[n]));
    })"""
    found = page.evaluate(apart)
    assert len(found) > 6
    assert max(found) < 4


def test_the_times_of_a_narrow_chart_do_not_overlap(visit: Visit) -> None:
    page = visit(viewport={"width": 1280, "height": 900}).open("/type?name=charge&span=6h")
    overlap = """() => [...document.querySelectorAll(".x")].filter(axis => {
        const found = [...axis.children].map(one => one.getBoundingClientRect()).filter(one => one.width);
        return found.some((one, n) => n && one.left < found[n - 1].right);
    }).length"""
    assert page.evaluate(overlap) == 0
