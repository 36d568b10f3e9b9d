"""Reads all pages of a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queuert.jobs import ChainRecord, Job
from queuert.state.paging import Page, PageRequest

_MOST_PAGES = 100


async def pages_of(
    read: Callable[[PageRequest], Awaitable[Page[Job] | Page[ChainRecord]]], limit: int, *, oldest_first: bool
) -> list[list[str]]:
    """Return the ids of all pages, page by page; raise an AssertionError if the pages do not end."""
    pages: list[list[str]] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        page = await read(PageRequest(limit, cursor, oldest_first))
        pages.append([one.id for one in page])
        cursor = page.next_cursor
        assert len(pages) < _MOST_PAGES, "the pages go round in a circle"
    return pages
