"""Pages that follow a chain, in Chromium: that of the example and that of the guide see how each chain ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Browser, Page, Route, expect

from examples.serving import reserved, serving
from examples.upload_service import Service, Upload, process
from tests.browser.conftest import Visitor

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide.md"


@dataclass
class Uploads:
    """The service of the example, on a thread with an event loop of its own."""

    portal: BlockingPortal
    service: Service
    url: str

    def only_id(self) -> str:
        """The id of the only chain."""
        [chain] = self.portal.call(self.service.client.list_chains)
        id: str = chain.id
        return id

    def cancel(self) -> None:
        """Cancel the only chain."""
        self.portal.call(self.service.client.cancel_chain, self.only_id())

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run a worker."""
        with self.portal.wrap_async_context_manager(self.service.worker()):
            yield


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[Uploads]:
    """The service."""
    with start_blocking_portal() as portal:
        service = Service(tmp_path)
        on, url = reserved()
        wrap = portal.wrap_async_context_manager
        with wrap(service.client), wrap(serving(service.app, on)):
            yield Uploads(portal, service, url)
            portal.call(service.queue.stop)


@pytest.fixture
def page(browser: Browser, uploads: Uploads) -> Iterator[Page]:
    """A page of the browser, whose scripts must not fail."""
    context = browser.new_context()
    visitor = Visitor(context.new_page(), uploads.url)
    yield visitor.page
    context.close()
    assert visitor.complaints == []


def open_example(page: Page, uploads: Uploads) -> None:
    """Upload an empty file, which fails, on the page of the example."""
    page.goto(uploads.url)
    page.set_input_files("#file", {"name": "a.bmp", "mimeType": "image/bmp", "buffer": b""})


def open_guide(page: Page, uploads: Uploads) -> None:
    """Follow an upload of an empty file, which fails, by the script of the guide."""
    service = uploads.service
    (service.folder / "a").touch()
    uploads.portal.call(lambda: service.client.start_chain(process, Upload(file="a"), id="a"))
    script = re.search(r"```js\n(.*?new EventSource.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert script is not None
    body = f"""<meta charset="utf-8"><ol id="log"></ol><script>
        const id = "a", token = "{service.tokens.sign("a")}";
        const log = (text) => document.getElementById("log").append(text);
        const show = () => log("progress; ");
        const done = (status) => log(`"status":"${{status}}"`);
        {script[1]}
        events.addEventListener("state", (event) => log(`state ${{JSON.parse(event.data).status}}; `));
        </script>"""
    page.route("**/guide", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto(f"{uploads.url}/guide")


PAGES = pytest.mark.parametrize("open_page", [open_example, open_guide])
OpenPage = Callable[[Page, Uploads], None]


@PAGES
def test_a_chain_that_closed_before_is_shown(page: Page, uploads: Uploads, open_page: OpenPage) -> None:
    def cancel_before(route: Route) -> None:
        uploads.cancel()
        route.continue_()

    page.route("**/events?*", cancel_before)
    open_page(page, uploads)
    expect(page.locator("#log")).to_contain_text('"status":"cancelled"')


@PAGES
def test_a_chain_that_fails_is_shown(page: Page, uploads: Uploads, open_page: OpenPage) -> None:
    open_page(page, uploads)
    expect(page.locator("#log")).to_contain_text("state open")
    with uploads.worker():
        expect(page.locator("#log")).to_contain_text('"status":"failed"')


@PAGES
def test_a_chain_that_is_cancelled_is_shown(page: Page, uploads: Uploads, open_page: OpenPage) -> None:
    open_page(page, uploads)
    expect(page.locator("#log")).to_contain_text("state open")
    uploads.cancel()
    expect(page.locator("#log")).to_contain_text('"status":"cancelled"')


@PAGES
def test_a_chain_that_was_deleted_is_shown(page: Page, uploads: Uploads, open_page: OpenPage) -> None:
    def delete_before(route: Route) -> None:
        uploads.portal.call(uploads.service.client.delete_chain, uploads.only_id())
        route.continue_()

    page.route("**/events?*", delete_before)
    open_page(page, uploads)
    expect(page.locator("#log")).to_contain_text(re.compile("no such upload|unknown"))
