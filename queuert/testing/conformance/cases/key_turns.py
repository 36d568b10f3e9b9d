"""Keys that take turns: no key waits for the backlog of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from queuert.limits import Limits
from queuert.run_at import after
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob
from queuert.testing.conformance.builders import ask, complete, eventually, job, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_FAIR = Limits(fair=True)


async def _claim(
    store: AsyncStore, limit: int = 1, *, limits: Limits = _FAIR, types: tuple[str, ...] = (), **more: Any
) -> list[ClaimedJob]:
    """Claim jobs, by default of type ``work``, of which alone the keys take turns."""
    return await store.claim(replace(ask(*types, limit=limit), limits={"work": limits}, **more))


async def _start(store: AsyncStore, keys: str, **more: Any) -> None:
    """Start a job for each letter, with the letter as its key; none for a full stop."""
    await start(store, *(job(limit_key=None if key == "." else key, input=f'"{key}"', **more) for key in keys))


async def _keys(store: AsyncStore, limits: Limits = _FAIR) -> str:
    """Claim one job after the other until there is none, and return their keys."""
    keys = ""
    while claimed := await _claim(store, limits=limits):
        keys += (claimed[0].input or "").strip('"')
        await store.finish([complete(one) for one in claimed])
    return keys


@case()
async def one_job_of_each_key_in_turn(stores: Stores) -> None:
    """However many jobs a key has, each key has one turn in a round."""
    store = await stores.open()
    await _start(store, "aaaaaabbc")
    keys = await _keys(store)
    assert sorted(keys[:3]) == ["a", "b", "c"]
    assert sorted(keys[3:5]) == ["a", "b"]
    assert keys[5:] == "aaaa"


@case()
async def jobs_without_a_key_have_turns_like_one_key(stores: Stores) -> None:
    """They wait for no other key, and none waits for them."""
    store = await stores.open()
    await _start(store, "aaa....b")
    keys = await _keys(store)
    assert sorted(keys[:3]) == [".", "a", "b"]
    assert sorted(keys[3:5]) == [".", "a"]
    assert sorted(keys[5:7]) == [".", "a"]
    assert keys[7:] == "."


@case()
async def a_claim_of_many_jobs(stores: Stores) -> None:
    """It takes one of each key, and as many of the same key as it has to, and all that there are."""
    store = await stores.open()
    await _start(store, "aaaaaaaabbc")
    assert Counter(one.input for one in await _claim(store, 3)) == Counter(['"a"', '"b"', '"c"'])
    assert Counter(one.input for one in await _claim(store, 4)) == Counter({'"a"': 3, '"b"': 1})
    assert len(await _claim(store, 100)) == 4
    assert await _claim(store, 100) == []


@case()
async def many_jobs_of_many_keys_in_turn(stores: Stores) -> None:
    """Claims of several jobs go round as claims of one do, also where keys have more than one job, or none is a key."""
    store = await stores.open()
    await _start(store, "aabbccdd..eeff")
    assert await _claim(store, 0) == []
    rounds = [Counter(one.input for one in await _claim(store, limit)) for limit in (3, 4, 3, 4)]
    assert sum(rounds[:2], Counter()) == sum(rounds[2:], Counter()) == Counter(f'"{key}"' for key in "abcd.ef")


@case()
async def many_jobs_by_priority_and_age_within_a_key(stores: Stores) -> None:
    """And not among keys, if several are claimed as well."""
    store = await stores.open()
    ranks = (("a", 5), ("a", 9), ("b", 0), ("c", 3), ("a", 5), ("b", 1), (None, 2), (None, 4))
    ids = await start(store, *(job(limit_key=key, priority=rank) for key, rank in ranks))
    assert {one.id for one in await _claim(store, 4)} == {ids[1], ids[3], ids[5], ids[7]}
    assert {one.id for one in await _claim(store, 2)} | {one.id for one in await _claim(store, 1)} == {
        ids[0],
        ids[2],
        ids[6],
    }
    assert [one.id for one in await _claim(store, 2)] == [ids[4]]


@case()
async def keys_that_become_many_and_few(stores: Stores) -> None:
    """Claims of several jobs take what there is, whether the last claims saw fewer keys or more."""
    store = await stores.open()
    for keys in ("aaaa", "abcdefgh", "a", "abcdefgh", "hhhhh", ".", "abcdefghijkl"):
        assert await _claim(store, 4) == []
        await _start(store, keys)
        claimed = [one.input for _ in range((len(keys) + 3) // 4) for one in await _claim(store, 4)]
        assert Counter(claimed) == Counter(f'"{key}"' for key in keys)


@case()
async def a_new_key_does_not_wait_for_a_backlog(stores: Stores) -> None:
    """One that comes behind three hundred jobs of another is served with the second claim at the latest."""
    store = await stores.open()
    await _start(store, "m" * 300)
    assert len(await _claim(store, 5)) == 5
    for late in "az":
        await _start(store, late)
        served = [one.input for _ in range(2) for one in await _claim(store)]
        assert f'"{late}"' in served


@case()
async def priority_and_age_decide_within_a_key(stores: Stores) -> None:
    """And not among keys: one with urgent jobs has no more turns than the others."""
    store = await stores.open()
    ids = await start(
        store, *(job(limit_key=key, priority=rank) for key, rank in (("a", 5), ("a", 9), ("b", 0), ("a", 5), ("b", 1)))
    )
    first = {one.id for _ in range(2) for one in await _claim(store)}
    second = {one.id for _ in range(2) for one in await _claim(store)}
    assert first == {ids[1], ids[4]}
    assert second == {ids[0], ids[2]}


@case()
async def worse_ranks_have_a_share_of_each_key(stores: Stores) -> None:
    """A claim that begins with worse ranks takes such jobs first, whichever key they have."""
    store = await stores.open()
    await start(store, *(job(limit_key=key, priority=9) for key in "aabbcc"))
    [low] = await start(store, job(limit_key="b"))
    claimed = [one.id for _ in range(3) for one in await _claim(store, 1, after_rank=-9)]
    assert low in claimed


@case()
async def scheduled_jobs_have_turns_when_they_are_due(stores: Stores) -> None:
    """Once their time has come they are claimed as others are."""
    store = await stores.open()
    await _start(store, "aaa")
    await start(
        store,
        job(limit_key="b", input='"b"', run_at=after(seconds=0.01)),
        job(limit_key="c", input='"c"', run_at=after(seconds=3600.0)),
    )

    async def due() -> bool:
        return (await store.next_due(["work"])) == 0

    await eventually(due)
    served: list[str] = []

    async def found() -> bool:
        served.extend((one.input or "").strip('"') for one in await _claim(store))
        return "b" in served

    await eventually(found)
    assert sorted(served) == ["a"] * (len(served) - 1) + ["b"]


@case()
async def scheduled_jobs_of_several_keys_when_they_are_due(stores: Stores) -> None:
    """A claim of several jobs takes them as well, of whichever keys."""
    store = await stores.open()
    await start(store, *(job(limit_key=key, input=f'"{key}"', run_at=after(seconds=0.01)) for key in "abc"))
    served: list[str] = []

    async def found() -> bool:
        served.extend((one.input or "").strip('"') for one in await _claim(store, 2))
        return len(served) == 3

    await eventually(found)
    assert sorted(served) == ["a", "b", "c"]


@case()
async def beside_other_types(stores: Stores) -> None:
    """A type whose keys take turns and one without limits both get their share of a claim."""
    store = await stores.open()
    await _start(store, "aaaab")
    await start(store, *(job("other") for _ in range(5)))
    claimed = await _claim(store, 4, types=("work", "other"))
    assert Counter(one.type for one in claimed) == Counter(work=2, other=2)
    assert {one.input for one in claimed if one.type == "work"} == {'"a"', '"b"'}
    assert len(await _claim(store, 100, types=("work", "other"))) == 6


@case()
async def with_limits(stores: Stores) -> None:
    """Keys take turns within the concurrency of the type, and a key that is at its limit is passed over."""
    store = await stores.open()
    await _start(store, "aaaaabbc.")
    limits = Limits(concurrency=3, per_key=1, fair=True)
    claimed = await _claim(store, 9, limits=limits)
    assert len({one.input for one in claimed}) == len(claimed) == 3
    assert await _claim(store, 9, limits=limits) == []
    await store.finish([complete(one) for one in claimed])
    keys = [(one.input or "").strip('"') for one in claimed] + list(await _keys(store, limits))
    assert sorted(keys[:4]) == [".", "a", "b", "c"]


@case()
async def bounded_by_the_size_of_inputs(stores: Stores) -> None:
    """A key whose job did not fit into a claim is the first of the next."""
    store = await stores.open()
    large = '"' + "x" * 1000 + '"'
    await start(store, *(job(limit_key=key, id=f"{key}{number}", input=large) for key in "abcd" for number in range(9)))
    claimed = [one.id[0] for _ in range(4) for one in await _claim(store, 4, max_bytes=1500)]
    assert sorted(claimed) == ["a", "b", "c", "d"]
    claimed = [one.id[0] for _ in range(2) for one in await _claim(store, 4, max_bytes=2500)]
    assert sorted(claimed) == ["a", "b", "c", "d"]


@case()
async def paused_types_are_left_out(stores: Stores) -> None:
    """Also if their keys take turns."""
    store = await stores.open()
    await _start(store, "ab")
    await store.pause_job_types(["work"], reason=None)
    assert await _claim(store) == await _claim(store, 2) == []
    await store.resume_job_types(["work"])
    assert len(await _claim(store, 9)) == 2


@case(Capability.ROW_LOCKS, Capability.USER_TRANSACTIONS)
async def what_others_hold_is_passed_over(stores: Stores) -> None:
    """A key whose best job is held has its turn with the next one, or later."""
    store, other = await stores.open_many(2)
    [held] = await start(store, job(limit_key="a", priority=1))
    await _start(store, "ab")
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("waits", blockers=[held])], connection=connection)
        assert sorted(await _keys(other)) == ["a", "b"]
    assert [one.id for one in await _claim(other)] == [held]


@case(Capability.ROW_LOCKS, Capability.USER_TRANSACTIONS)
async def several_jobs_but_for_what_others_hold(stores: Stores) -> None:
    """A claim of several jobs does not wait for one that is held, and takes no less because of it."""
    store, other = await stores.open_many(2)
    [held] = await start(store, job(limit_key="b", priority=1))
    await _start(store, "abcde")
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("waits", blockers=[held])], connection=connection)
        assert Counter(one.input for one in await _claim(other, 3)) == Counter(['"a"', '"c"', '"d"'])
    assert held in {one.id for one in await _claim(other, 3)}


@case()
async def all_jobs_once_by_claims_at_once(stores: Stores) -> None:
    """Stores that claim at once, three jobs or one, take each job once, and leave none."""
    several = await stores.open_many(6)
    await _start(several[0], "a" * 60 + "bbbcccdd.." + "efghijkl")
    found: list[str] = []

    async def work(store: AsyncStore) -> None:
        limit = 1 if store in several[::2] else 3
        while claimed := await _claim(store, limit):
            found.extend(one.id for one in claimed)
            await store.finish([complete(one) for one in claimed])

    await asyncio.gather(*map(work, several))
    await work(several[0])
    assert len(found) == len(set(found)) == 78
