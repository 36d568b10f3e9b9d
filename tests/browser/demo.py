"""The dashboard as files: pages of a filled database whose links lead to each other, without a server."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import httpx

MOST = 400
"""The most pages of a demo."""

MOST_OF_ONE = 60
"""The most pages of one path, such as those of chains."""

LEFT_OUT = "left-out.html"
"""Where links to pages lead that are none of the demo."""

_LINK = re.compile(r'(?<=\s)(href|src)="([^"]*)"')
_FORM = re.compile(r"(<form\b[^>]*?) (?:method|action)=\"[^\"]*\"")
_CONTROL = re.compile(r"<(?:button|input|select|textarea)\b(?![^>]*\bdisabled\b)(?![^>]*menu-box)")
_BANNER = '<p class="reads-only" role="note">Pages of a demo: they change nothing, and do not refresh.</p>'


def file_of(address: str) -> str:
    """The name of the file of an address.

    >>> file_of("/"), file_of("/chains")
    ('index.html', 'chains.html')
    """
    parts = urlsplit(address)
    name = parts.path.strip("/").replace("/", "-") or "index"
    # Ids may be any text, which no name of a file is.
    return f"{name}-{hashlib.sha256(parts.query.encode()).hexdigest()[:12]}.html" if parts.query else f"{name}.html"


def render(address: str, begin: Iterable[str], folder: Path, headers: dict[str, str] | None = None) -> dict[str, str]:
    """Write the pages of a dashboard that is served there, and what they link to; return the file of each address.

    ``begin`` are the addresses to begin with: pages that forms lead to have no links.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.html"):
        old.unlink()
    pages: dict[str, str] = {}
    waiting, counts = deque(["/", *begin]), Counter[str]()
    with httpx.Client(base_url=address, headers=headers, follow_redirects=True, timeout=60) as web:
        while waiting and len(pages) < MOST:
            place = waiting.popleft()
            path = urlsplit(place).path
            if place in pages or counts[path] >= MOST_OF_ONE:
                continue
            answer = web.get(place)
            if "text/html" not in answer.headers["content-type"]:
                continue
            counts[path] += 1
            pages[place] = answer.text
            main = answer.text[answer.text.index("<nav") :]
            waiting += [link for _, value in _LINK.findall(main) if (link := _local(value)) is not None]
        static = {link for page in pages.values() for name, value in _LINK.findall(page) if (link := _static(value))}
        for name in (*static, *_fonts(web, static)):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(web.get(f"/{name}").content)
    files = {place: file_of(place) for place in pages}
    for place, text in pages.items():
        (folder / files[place]).write_text(_as_file(text, files), "utf-8")
    left_out = re.sub(
        r"(<main[^>]*>).*(</main>)",
        r"\1<h1>Not in the demo</h1><p>The demo has some pages of each kind, and this is none of them.</p>\2",
        pages["/"],
        flags=re.DOTALL,
    )
    (folder / LEFT_OUT).write_text(_as_file(left_out, files), "utf-8")
    return files


def _local(value: str) -> str | None:
    """The address of a page that a link leads to; None if it leads elsewhere."""
    place = urldefrag(unescape(value)).url
    return place if place.startswith("/") and not place.startswith("/static/") else None


def _static(value: str) -> str | None:
    """The name of a file of the dashboard; None for all else."""
    path = urlsplit(unescape(value)).path
    return path.removeprefix("/") if path.startswith("/static/") else None


def _fonts(web: httpx.Client, static: Iterable[str]) -> list[str]:
    """The files that style sheets name."""
    sheets = [web.get(f"/{one}").text for one in static if one.endswith(".css")]
    return [f"static/{name}" for sheet in sheets for name in re.findall(r'url\("([^"?]+)', sheet)]


def _as_file(text: str, files: dict[str, str]) -> str:
    """A page whose links lead to files, whose forms are sent nowhere, and which asks no server for anything."""

    def link(found: re.Match[str]) -> str:
        value = found[2]
        name, place = _static(value), _local(value)
        if place is not None:
            fragment = urldefrag(unescape(value)).fragment
            name = files.get(place, LEFT_OUT) + (f"#{fragment}" if fragment else "")
        return f'{found[1]}="{escape(name)}"' if name is not None else found[0]

    text = _LINK.sub(link, text)
    for _ in range(2):
        text = _FORM.sub(r"\1", text)
    text = _CONTROL.sub(lambda found: f"{found[0]} disabled", text)
    text = re.sub(r'data-live="[^"]*"', 'data-live=""', text)
    return re.sub(r"(<main[^>]*>)", rf"\1{_BANNER}", text, count=1)
