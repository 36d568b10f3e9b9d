"""What jobs that a finish creates inherit of the finished job: only if they say so, and have none of their own."""

from __future__ import annotations

from queuert.jobs import JobStatus
from queuert.limits import Limits
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.types import ClaimRequest
from queuert.testing.conformance.builders import ask, claim_one, complete, go_on, job, read, read_chain, start, wait
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def continuations_inherit_the_limit_key(stores: Stores) -> None:
    """A continuation has the limit key of the job before if it says so, through several jobs, with blockers too."""
    store = await stores.open()
    [first, blocker] = await start(store, job(limit_key="tenant"), job("other"))
    second = job("second", inherit_limit_key=True)
    await store.finish([go_on(await claim_one(store), second)])
    third = job("third", inherit_limit_key=True, blockers=[blocker])
    await store.finish([go_on(await claim_one(store, "second"), third)])
    assert [(await read(store, id)).limit_key for id in (first, second.id, third.id)] == ["tenant"] * 3
    await store.finish([complete(await claim_one(store, "other"))])
    last = job("last")
    await store.finish([go_on(await claim_one(store, "third"), last)])
    assert (await read(store, last.id)).limit_key is None


@case()
async def own_limit_keys_come_first(stores: Stores) -> None:
    """A key of its own stays, and a job without a key has none to pass on."""
    store = await stores.open()
    await start(store, job(limit_key="tenant"))
    own = job("second", limit_key="own", inherit_limit_key=True)
    await store.finish([go_on(await claim_one(store), own)])
    assert (await read(store, own.id)).limit_key == "own"
    await start(store, job())
    none = job("second", inherit_limit_key=True)
    await store.finish([go_on(await claim_one(store), none)])
    assert (await read(store, none.id)).limit_key is None


@case()
async def inherited_keys_are_counted(stores: Stores) -> None:
    """Limits by key count a continuation by the key that it has inherited."""
    store = await stores.open()
    await start(store, *(job(limit_key="tenant") for _ in range(2)))
    for claimed in await store.claim(ask()):
        await store.finish([go_on(claimed, job("second", inherit_limit_key=True))])
    request = ask("second")
    limited = ClaimRequest(request.leases, 10, "holder", request.token, {"second": Limits(per_key=1)})
    [claimed] = await store.claim(limited)
    assert (await read(store, claimed.id)).limit_key == "tenant"


@case()
async def children_inherit_attributes_and_limit_key(stores: Stores) -> None:
    """Chains that a job waits for have the attributes of its chain and its limit key, and are found."""
    store = await stores.open()
    given = {"user": "17", "tags": ("a", "b")}
    parent = job(attributes=given, limit_key="tenant")
    await start(store, parent)
    # The attributes are those of the chain, of whose jobs this is not the first.
    await store.finish([go_on(await claim_one(store), job("second", inherit_limit_key=True))])
    both = job("child", inherit_attributes=True, inherit_limit_key=True)
    only_attributes = job("child", inherit_attributes=True)
    own = job("child", attributes={"user": "18"}, limit_key="own", inherit_attributes=True, inherit_limit_key=True)
    neither = job("child")
    children = [both, only_attributes, own, neither]
    await store.finish([wait(await claim_one(store, "second"), *children)])
    assert [(await read(store, child.id)).limit_key for child in children] == ["tenant", None, "own", None]
    found = [(await read_chain(store, child.id)).attributes for child in children]
    assert found == [given, given, {"user": "18"}, {}]
    listed = await store.list_chains(ChainFilter(attributes=(("user", "17"), ("tags", "b"))), PageRequest(10))
    assert {chain.id for chain in listed} == {parent.id, both.id, only_attributes.id}
    await store.finish([complete(one) for one in await store.claim(ask("child"))])
    assert (await claim_one(store, "second")).chain_id == parent.id


@case()
async def parents_without_any(stores: Stores) -> None:
    """A job without attributes and limit key has none to pass on; several waits of one batch pass on their own."""
    store = await stores.open()
    await start(store, job(), job(attributes={"n": "1"}), job(limit_key="b", attributes={"n": "2"}))
    held = await store.claim(ask())
    children = {one.id: job("child", inherit_attributes=True, inherit_limit_key=True) for one in held}
    await store.finish([wait(one, children[one.id]) for one in held])
    for one in held:
        child = await read(store, children[one.id].id)
        assert (child.limit_key, child.status) == ((await read(store, one.id)).limit_key, JobStatus.READY)
        assert (await read_chain(store, child.id)).attributes == (await read_chain(store, one.id)).attributes


@case()
async def in_a_transaction(stores: Stores) -> None:
    """The same holds of finishes in the transaction of an attempt."""
    store = await stores.open()
    await start(store, job(attributes={"user": "17"}, limit_key="tenant"))
    second = job("second", inherit_limit_key=True)
    held = await claim_one(store)
    async with store.transaction(held) as transaction:
        assert (await transaction.finish(go_on(held, second))).written
    child = job("child", inherit_attributes=True, inherit_limit_key=True)
    held = await claim_one(store, "second")
    async with store.transaction(held) as transaction:
        assert (await transaction.finish(wait(held, child))).written
    assert (await read(store, child.id)).limit_key == "tenant"
    assert (await read_chain(store, child.id)).attributes == {"user": "17"}
