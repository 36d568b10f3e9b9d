"""The browser, and the dashboard of a filled database, once for all tests of this directory.

Chromium is found on the machine: ``QUEUERT_CHROMIUM`` names it, or it is on the path. ``.ci/run`` installs it; without
it these tests are skipped. Pictures of all pages are written to ``.cache/browser``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from queuert.testing.databases import TemplateDatabases
from tests.browser.shop import LEVEL, Shop

PICTURES = Path(__file__).resolve().parents[2] / ".cache" / "browser"

# Without these, Chromium asks servers of its makers for updates and more.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

TIMEOUT = 30_000
"""Milliseconds that a page or an element may take to appear: the machine may be busy."""


expect.set_options(timeout=TIMEOUT)


def chromium() -> str | None:
    """The browser of this machine."""
    given = os.environ.get("QUEUERT_CHROMIUM")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium."""
    path = chromium()
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium), or name it in QUEUERT_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shop(template_databases: TemplateDatabases) -> Iterator[Shop]:
    """The dashboard of a filled database."""
    with template_databases.database() as dsn:
        shop = Shop(dsn)
        try:
            shop.fill()
            yield shop
        finally:
            shop.close()


class Visitor:
    """A page of the browser, which notes what must not happen: errors of scripts, and violations of the policy."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.complaints: list[str] = []
        page.set_default_timeout(TIMEOUT)
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_message(self, message: Any) -> None:
        # A page that is refused or missing is a message, too.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        """Go to a page of the dashboard."""
        self.page.goto(self.address + path)
        return self.page

    def text(self) -> str:
        """The words of the page's main part."""
        return re.sub(r"\s+", " ", self.page.inner_text("main"))


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser, shop: Shop) -> Iterator[Visit]:
    """Opens pages in contexts of their own, which have no session in common, and sees that none had an error."""
    contexts: list[BrowserContext] = []
    visitors: list[Visitor] = []

    def open_page(level: str = "full", *, base: str = "", **settings: Any) -> Visitor:
        given = {"viewport": {"width": 1440, "height": 900}, "extra_http_headers": {LEVEL: level}, **settings}
        context = browser.new_context(**given)
        contexts.append(context)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective, e.blockedURI))"
        )
        visitor = Visitor(context.new_page(), shop.address + base)
        visitors.append(visitor)
        return visitor

    yield open_page
    for context in contexts:
        context.close()
    assert [one.complaints for one in visitors if one.complaints] == []
