"""The chains of a deduplication key."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from queuert.deduplication import Deduplicate
from queuert.state import AsyncStore, Capability
from queuert.testing.conformance.builders import claim_one, complete, go_on, job
from queuert.testing.conformance.expiry import expired
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


class _OnPurpose(Exception):
    """Rolls the transaction back."""


async def _start(store: AsyncStore, key: str = "key", type: str = "work", **how: Any) -> str:
    excluding = how.pop("excluding", ())
    [started] = await store.start_jobs([job(type, deduplication=Deduplicate(key, excluding=excluding), **how)])
    return started.id


@case()
async def open_ones_the_newest_first(stores: Stores) -> None:
    """Open chains of the key and type, the newest first, up to a limit; also those that went on to another job."""
    store = await stores.open()
    first = await _start(store)
    await store.finish([go_on(await claim_one(store), job("next"))])
    second = await _start(store, excluding=[first])
    await _start(store, "other")
    await _start(store, type="another")
    await store.start_jobs([job()])
    assert await store.chains_of_key("work", "key") == [second, first]
    assert await store.chains_of_key("work", "key", limit=1) == [second]
    assert await store.chains_of_key("next", "key") == []
    assert await store.chains_of_key("work", "nothing") == []


@case()
async def closed_ones_too(stores: Stores) -> None:
    """All that are stored, if so requested: closed ones as well, but none that has expired or was deleted."""
    store = await stores.open()
    short = await _start(store, result_ttl=0.001)
    await store.finish([complete(await claim_one(store))])
    closed = await _start(store)
    await store.finish([complete(await claim_one(store))])
    deleted = await _start(store)
    await store.delete_chains([deleted])
    opened = await _start(store)
    await expired(store, short)
    assert await store.chains_of_key("work", "key") == [opened]
    assert await store.chains_of_key("work", "key", only_open=False) == [opened, closed]
    assert await store.chains_of_key("work", "key", only_open=False, limit=1) == [opened]


@case()
async def any_characters(stores: Stores) -> None:
    """Keys are any text, and those that differ are different."""
    store = await stores.open()
    keys = ["a'b", 'a"b', "{a}", "%s %(a)s", "\u00e9", "e\u0301", "\n", "a\\b", "A", "a", " a", "\U0001f600"]
    ids = [await _start(store, key) for key in keys]
    assert [await store.chains_of_key("work", key) for key in keys] == [[id] for id in ids]


@case(Capability.USER_TRANSACTIONS)
async def in_a_transaction(stores: Stores) -> None:
    """With the caller's connection also those that its transaction has started."""
    store = await stores.open()
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            [started] = await store.start_jobs([job(deduplication=Deduplicate("key"))], connection=connection)
            assert await store.chains_of_key("work", "key", connection=connection) == [started.id]
            assert await store.chains_of_key("work", "key") == []
            raise _OnPurpose
    assert await store.chains_of_key("work", "key", only_open=False) == []
