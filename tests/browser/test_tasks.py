"""Ten tasks of an operator, from the first page on, by the browser alone; the design note has the clicks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from queuert import NewChain
from queuert.jobs import ChainStatus
from queuert.testing.shop import story
from queuert.testing.shop.job_types import Order, order, restock
from tests.browser.conftest import Visit
from tests.browser.shop import TRACE, VANISHED, Shop

NOTE = Path(__file__).resolve().parents[2] / "docs" / "design" / "dashboard.md"


class Operator:
    """Somebody at the first page, whose clicks are counted. To type into a field and press Enter is one."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, name: str | re.Pattern[str], role: Any = "link") -> None:
        """Click a link or a button."""
        self.clicks += 1
        self.page.get_by_role(role, name=name, exact=isinstance(name, str)).first.click()

    def press(self, name: str) -> None:
        """Click a button."""
        self.click(name, "button")

    def search(self, text: str) -> None:
        """Search for something."""
        self.clicks += 1
        box = self.page.get_by_role("searchbox")
        box.fill(text)
        box.press("Enter")

    def fill(self, label: str, value: str) -> None:
        """Type into a field of a form, which is no click."""
        self.page.get_by_label(label).fill(value)

    def choose(self, label: str, value: str) -> None:
        """Choose from a list, which is a click."""
        self.clicks += 1
        self.page.get_by_label(label).select_option(value)

    @property
    def main(self) -> Locator:
        """What the page shows."""
        return self.page.locator("main")


@pytest.fixture
def operator(visit: Visit) -> Operator:
    return Operator(visit().open("/"))


def written(task: int) -> int:
    """The clicks that the note says a task takes."""
    found = re.search(rf"^\| {task}\. [^|]*\| (\d+) \|", NOTE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_1_find_why_order_21_is_stuck(operator: Operator) -> None:
    operator.search(story.STUCK)
    expect(operator.main).to_contain_text("no live worker handles type restock")
    assert operator.clicks == written(1)


def test_2_retry_all_failures_of_last_night_with_one_error(operator: Operator, shop: Shop) -> None:
    operator.click("Failures")
    operator.click("last 12 hours")
    operator.click(re.compile("Retry sync-customer: .*CrmUnavailable"), "button")
    operator.press("Retry 42 chains")
    expect(operator.main).to_contain_text("The operation was started.")
    shop.run(shop.client.run_bulk_operations())
    [newest, *_] = shop.run(shop.client.list_bulk_operations()).items
    assert (newest.changed, newest.skipped) == (42, 0)
    assert operator.clicks == written(2)


def test_3_pause_a_type(operator: Operator, shop: Shop) -> None:
    operator.click("pack")
    operator.fill("Reason to pause", "the printer is broken")
    operator.press("Pause type")
    expect(operator.main).to_contain_text("The job type is paused")
    shop.run(shop.client.resume_job_types(["pack"]))
    assert operator.clicks == written(3)


def test_4_see_who_is_slow(operator: Operator) -> None:
    operator.click("Run p95")
    expect(operator.page.locator("[data-region=types] tbody tr").first).to_contain_text("pack")
    assert operator.clicks == written(4)


def test_5_find_what_a_worker_that_vanished_holds(operator: Operator) -> None:
    operator.click(VANISHED)
    expect(operator.page.locator("[data-region=held] tbody tr")).to_have_count(2)
    assert operator.clicks == written(5)


def test_6_approve_a_waiting_chain(operator: Operator, shop: Shop) -> None:
    [*_, waiting] = shop.run(shop.client.list_chains(job_types=["refund"], statuses=["open"])).items
    operator.search(waiting.id)
    operator.click("Send approval…")
    operator.fill("Payload, as JSON", '"yes"')
    operator.press("Send the event")
    expect(operator.main).to_contain_text("The event was sent")
    assert operator.clicks == written(6)


def test_7_follow_a_chain_to_its_end(operator: Operator, shop: Shop) -> None:
    shop.start(NewChain(order, Order(number=1, customer="ada", cents=1), id="to-the-end"))
    operator.search("to-the-end")
    with shop.worker():
        expect(operator.page.locator(".title .pill")).to_contain_text("completed")
    assert operator.clicks == written(7)


def test_8_find_the_trace(operator: Operator) -> None:
    operator.search("traced")
    link = operator.page.get_by_role("link", name="Trace of its creation")
    assert link.get_attribute("href") == f"https://tempo.example/trace/{TRACE}"
    operator.clicks += 1
    assert operator.clicks == written(8)


def test_9_see_that_a_schedule_is_late(operator: Operator) -> None:
    expect(operator.main).to_contain_text("The schedule nightly-report is late.")
    assert operator.clicks == written(9)


def test_10_cancel_by_filter(operator: Operator, shop: Shop) -> None:
    ids = shop.start(*[NewChain(restock, "wrong", attributes={"batch": "wrong"}) for _ in range(3)])
    operator.click("Chains")
    operator.fill("Attributes", "batch=wrong")
    operator.choose("Status", "open")
    operator.press("Filter")
    operator.press("Cancel all that match…")
    operator.press("Cancel 3 chains")
    expect(operator.main).to_contain_text("The operation was started.")
    shop.run(shop.client.run_bulk_operations())
    assert {shop.status(id) for id in ids} == {ChainStatus.CANCELLED}
    assert operator.clicks == written(10)
