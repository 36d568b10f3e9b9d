"""The dashboard as files: ``make dashboard-demo`` writes them."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queuert.web.dashboard.routes import PAGES as PAGE_ROUTES
from tests.browser.conftest import Visit
from tests.browser.demo import LEFT_OUT, render
from tests.browser.shop import Shop
from tests.browser.test_pages import PAGES, path_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are written: ``QUEUERT_DEMO`` names it, if they are to be looked at."""
    given = os.environ.get("QUEUERT_DEMO")
    return Path(given).absolute() if given else tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(shop: Shop, folder: Path) -> dict[str, str]:
    """The files of the pages."""
    return render(shop.address, [path_of(shop, name) for name in PAGES], folder)


def test_the_files_of_a_demo_lead_to_each_other(demo: dict[str, str], folder: Path) -> None:
    paths = {urlsplit(place).path for place in demo}
    assert {page.path for page in PAGE_ROUTES if page.method == "GET"} - {"/search"} <= paths
    followed = 0
    for name in (*demo.values(), LEFT_OUT):
        text = (folder / name).read_text("utf-8")
        assert not re.search(r"<form[^>]* (?:method|action)=", text)
        for value in re.findall(r'\s(?:href|src)="([^"#]+)', text):
            if not unescape(value).startswith("https://"):
                followed += 1
                assert (folder / unescape(value)).is_file(), (name, value)
    assert followed > 1_000
    assert all((folder / name).stat().st_size for name in ("static/dashboard.css", "static/vendor/inter-latin.woff2"))


def test_a_demo_is_read_without_a_server(visit: Visit, demo: dict[str, str], folder: Path) -> None:
    visitor = visit()
    page = visitor.page
    page.goto((folder / demo["/"]).as_uri())
    page.get_by_role("link", name="Chains", exact=True).click()
    page.wait_for_url("**/chains.html")
    page.locator("tr[data-row] a.id[href^=chain-]").first.click()
    page.wait_for_url("**/chain-*.html")
    assert page.evaluate("getComputedStyle(document.querySelector('.pill')).borderRadius") == "5px"
    assert page.locator("main button:enabled").count() == 0
