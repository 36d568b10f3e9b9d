"""Each page in Chromium: no violation of the policy; axe finds nothing serious in light, in dark and on 320 pixels."""

from __future__ import annotations

from itertools import cycle
from typing import Any, Literal
from urllib.parse import urljoin

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ViewportSize

from queuert.web.dashboard.routes import PAGES as PAGE_ROUTES
from tests.browser.conftest import PICTURES, Visit
from tests.browser.shop import LIMPING, VANISHED, Shop

PAGES = {
    "overview": "/",
    "chains": "/chains?status=open",
    "chain-stuck": "/chain?id=order-21",
    "chain-done": "/chain?id=order-3&events=1",
    "jobs": "/jobs?type=ship",
    "job-running": "/job?id={running}",
    "job-failed": "/job?id={failed}",
    "job-retried": "/job?id={retried}",
    "failures": "/failures",
    "types": "/types",
    "type": "/type?name=charge&span=6h",
    "workers": "/workers",
    "worker": f"/worker?name={VANISHED}",
    "schedules": "/schedules",
    "webhooks": "/webhooks",
    "webhook": "/webhook?id={webhook}",
    "operations": "/operations",
    "events": "/events?type=product-page",
    "system": "/system",
    "confirm-cancel": "/chain/cancel?id=order-21",
    "confirm-retry": "/failures/retry?type=sync-customer",
    "retry-together": "/chain/retry-together?id=order-7",
    "confirm-delete": "/chain/delete?id=order-21",
    "confirm-selected": "/chains/selected?action=cancel&id=order-21&id=restock-21",
    "confirm-bulk": "/operations/start?action=cancel&status=open&type=restock",
    "confirm-schedule": "/schedules/delete?name=rates",
    "complete": "/chain/complete?id=restock-21",
    "send-event": "/chain/send-event?id=order-21",
    "edit": "/chain/edit?id=order-7",
    "reschedule": "/chain/change?id=order-21",
    "reschedule-checked": "/chain/change?id=order-21&run_at=8h&priority=3",
    "reschedule-refused": "/chain/change?id=order-21&run_at=2020-01-01&priority=3",
    "chains-refused": "/chains?attribute=customer&since=yesterday&status=open",
    "bulk-reschedule": "/operations/start?action=reschedule&status=open&type=restock&run_at=30h",
    "missing": "/chain?id=missing",
}
BASES = dict(zip(PAGES, cycle(("", "/ops/queue")), strict=False))
"""Where each page is looked at: by turns at the root, and below a prefix."""

NARROW: ViewportSize = {"width": 320, "height": 800}
WIDE: ViewportSize = {"width": 1440, "height": 900}

MODES: dict[str, tuple[Literal["light", "dark"], ViewportSize, dict[str, Any]]] = {
    "light": ("light", WIDE, {}),
    # Another theme has the same elements, and another width has the same paint.
    "dark": ("dark", WIDE, {"runOnly": {"type": "rule", "values": ["color-contrast"]}}),
    "narrow": ("light", NARROW, {"rules": {"color-contrast": {"enabled": False}}}),
}

_axe = Axe()


def path_of(shop: Shop, name: str) -> str:
    """The path of a page, with ids that the store has chosen."""
    path = PAGES[name]
    if "{" not in path:
        return path
    if "{webhook}" in path:
        ids = (one.id for one in shop.run(shop.client.list_webhooks()) if one.description == LIMPING)
        return path.replace("{webhook}", next(ids))
    wanted = {
        "{running}": ("import-catalog", "running"),
        "{failed}": ("charge", "failed"),
        "{retried}": ("charge", "scheduled"),
    }
    for mark, (type, status) in wanted.items():
        if mark in path:
            [job, *_] = shop.run(shop.client.list_jobs(job_types=[type], statuses=[status])).items
            path = path.replace(mark, job.id)
    return path


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_accessible_in_light_dark_and_narrow(visit: Visit, shop: Shop, name: str) -> None:
    visitor = visit(base=BASES[name])
    page = visitor.open(path_of(shop, name))
    PICTURES.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    for mode, (scheme, size, options) in MODES.items():
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size(size)
        results = _axe.run(page, options={"resultTypes": ["violations"], **options})
        bad = [
            f"{one['id']}: {one['nodes'][0]['html'][:160]}"
            for one in results.response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        page.screenshot(path=PICTURES / f"{name}-{mode}.png", full_page=True)
        if bad:
            found[mode] = bad
    assert found == {}
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_each_route_of_a_page_is_among_those_that_are_looked_at() -> None:
    # A search leads to other pages, and has none.
    assert {page.path for page in PAGE_ROUTES if page.method == "GET"} - {"/search"} == {
        path.split("?")[0] for path in PAGES.values()
    }


def test_all_links_lead_to_pages_below_a_prefix(visit: Visit, shop: Shop) -> None:
    base = "/ops/queue"
    visitor = visit(base=base)
    page, seen = visitor.page, dict[str, int]()
    for name in [one for one in PAGES if one != "missing"]:
        visitor.open(path_of(shop, name))
        addresses = "all => all.map(one => one.href?.baseVal ?? one.href ?? one.src)"
        links = page.eval_on_selector_all("a[href], link[href], script[src], img[src]", addresses)
        for link in links:
            place = urljoin(page.url, link).split("#")[0]
            if place.startswith("https://tempo.example/") or place in seen:
                continue
            assert place.startswith(f"{shop.address}{base}/"), link
            seen[place] = 0
    # One of each kind is enough: rows have the same links. The first is one of a chain that is there: those of
    # deliveries lead to chains that were pruned.
    kinds: dict[str, str] = {}
    for link in seen:
        kinds.setdefault(link.split("?")[0], link)
    for link in kinds.values():
        seen[link] = page.request.get(link).status
    assert {link: seen[link] for link in kinds.values() if seen[link] != 200} == {}


def test_pages_work_without_a_script(visit: Visit, shop: Shop) -> None:
    visitor = visit(java_script_enabled=False)
    page = visitor.open("/chains")
    page.get_by_label("Attributes").fill("customer=fatima")
    page.get_by_label("Status").select_option("open")
    page.get_by_role("button", name="Filter").click()
    assert "order-21" in visitor.text()
    page.get_by_role("link", name="order-21").click()
    assert "No live worker handles type restock" in visitor.text()
    page.get_by_role("link", name="Cancel…").click()
    assert "Cancel this chain?" in visitor.text()


def test_nothing_is_wider_than_a_narrow_screen_with_the_menu_open(visit: Visit) -> None:
    visitor = visit(viewport=NARROW)
    page = visitor.open("/")
    assert not page.get_by_role("navigation", name="Pages").is_visible()
    page.get_by_text("Menu").click()
    page.get_by_role("link", name="Failures").first.click()
    page.wait_for_url("**/failures")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_theme_and_time_zone_are_switched(visit: Visit) -> None:
    visitor = visit(timezone_id="Asia/Kolkata")
    page = visitor.open("/chains")
    page.get_by_role("button", name="Dark").click()
    page.get_by_role("button", name="Local time").click()
    assert page.get_attribute("html", "data-theme") == "dark"
    assert "IST" in str(page.get_attribute("main time", "title"))
    page.get_by_role("button", name="UTC").click()
    assert "UTC" in str(page.get_attribute("main time", "title"))
