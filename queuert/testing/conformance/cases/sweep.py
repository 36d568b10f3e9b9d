"""The sweep: it leaves alone what waits, and pages through it. What it repairs cannot be made through the contract."""

from __future__ import annotations

import asyncio

from queuert.jobs import JobStatus
from queuert.testing.conformance.builders import complete, job, read, start, started_and_claimed
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def nothing_to_sweep(stores: Stores) -> None:
    """Without blocked jobs nothing is released, and there is no next page."""
    store = await stores.open()
    await start(store, job(), job())
    result = await store.release_stranded()
    assert (list(result.released), result.cursor) == ([], None)


@case()
async def what_waits_is_let_be(stores: Stores) -> None:
    """Jobs with an open blocker stay blocked, on all pages; the cursor leads through them to the end."""
    store = await stores.open()
    held = await started_and_claimed(store, 2)
    ids = await start(store, *(job("waits", blockers=[one.id for one in held]) for _ in range(5)))
    await store.finish([complete(held[0])])
    pages, cursor = 0, None
    for _ in range(10):
        result = await store.release_stranded(cursor=cursor, limit=2)
        assert list(result.released) == []
        pages, cursor = pages + 1, result.cursor
        if cursor is None:
            break
    assert pages == 3
    for id in ids:
        found = await read(store, id)
        assert (found.status, found.open_blockers) == (JobStatus.BLOCKED, 1)


@case()
async def against_the_release(stores: Stores) -> None:
    """A sweep beside the closing of the last blocker: the job is released once, and told of once."""
    store, other = await stores.open_many(2)
    for _ in range(25):
        [held] = await started_and_claimed(store)
        [waiting] = await start(store, job("waits", blockers=[held.id]))
        [closed], swept = await asyncio.gather(store.finish([complete(held)]), other.release_stranded())
        assert (closed.due_types, list(swept.released)) == (("waits",), [])
        found = await read(store, waiting)
        assert (found.status, found.open_blockers) == (JobStatus.READY, 0)
        await store.cancel_chains([waiting], reason="the next round")
