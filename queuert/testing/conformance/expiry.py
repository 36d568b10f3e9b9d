"""Chains that close and expire, for cases about retention."""

from __future__ import annotations

from typing import Any

from queuert.policies import Keep, Retention
from queuert.state import AsyncStore
from queuert.state.types import PruneRequest
from queuert.testing.conformance.builders import complete, eventually, started_and_claimed

SOON = 0.001
LONG = 3_600.0
"""Seconds."""
ALL_GO = Retention(Keep(count=0), Keep(count=0), Keep(count=0))


async def expired(store: AsyncStore, *ids: str) -> None:
    """Wait until closed chains have expired, which happens soon."""

    async def all_gone() -> bool:
        return not any(await store.get_chains(ids))

    await eventually(all_gone)


async def closed_chain(store: AsyncStore, *, id: str | None = None, ttl: float | None = SOON, **more: Any) -> str:
    """Return a completed chain."""
    [held] = await started_and_claimed(store, id=id, result_ttl=ttl, **more)
    await store.finish([complete(held)])
    return held.id


async def pruned(store: AsyncStore, policies: dict[str, Retention] | None = None, *, limit: int = 1_000) -> list[str]:
    """Prune from the first page to the last, and return the deleted chains."""
    gone: list[str] = []
    cursor = None
    for _ in range(1_000):
        result = await store.prune(PruneRequest(policies or {}, limit, cursor))
        gone += result.chain_ids
        cursor = result.cursor
        if cursor is None:
            return gone
    raise AssertionError("there is no end to it")


async def there(store: AsyncStore, *ids: str) -> list[str]:
    """Return the jobs among these that are stored."""
    return [one.id for one in await store.get_jobs(ids) if one is not None]


async def closed_chains(store: AsyncStore, *finishes: Any, type: str = "work", **more: Any) -> list[str]:
    """Start chains one after the other, close them in these ways, and return their ids in this order."""
    claims = [(await started_and_claimed(store, type=type, **more))[0] for _ in finishes]
    await store.finish([finish(held) for finish, held in zip(finishes, claims, strict=True)])
    return [held.id for held in claims]
