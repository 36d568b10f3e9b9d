"""Records of webhooks, changed by their tags, and the log of deliveries, which depends on no endpoint and no job."""

from __future__ import annotations

import asyncio

from queuert.errors import InvalidCursorError
from queuert.ids import new_token
from queuert.state import AsyncStore
from queuert.state.paging import PageRequest
from queuert.state.webhooks import NewWebhookAttempt, WebhookRecord, WebhookWrite
from queuert.testing.conformance.builders import cancel, error_of, job, start, started_and_claimed
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_BODY = '{"url": "https://example.test/naïve", "n": [1, null, "\\n"]}'


def _write(id: str, body: str | None, expected: str | None = None, *, kind: str = "endpoint") -> WebhookWrite:
    return WebhookWrite(kind, id, body, new_token(), expected)


def _attempt(endpoint: str, delivery: str, *, error: str | None = None) -> NewWebhookAttempt:
    failed = {"error": error, "status": None, "retry_in": 5.25, "response": None}
    went = failed if error else {"error": None, "status": 204, "retry_in": None, "response": "ok '\"\n é"}
    return NewWebhookAttempt(endpoint, delivery, "chain.completed", 1, seconds=0.125, **went)


async def _deliveries(store: AsyncStore, endpoint: str) -> list[str]:
    return [one.delivery_id for one in await store.list_webhook_attempts(endpoint, PageRequest())]


@case()
async def records_are_changed_by_their_tag(stores: Stores) -> None:
    """A record is created once, and changed or deleted only by who has read what is stored."""
    store = await stores.open()
    first = _write("b", _BODY)
    assert await store.put_webhook_record(first)
    assert not await store.put_webhook_record(_write("b", "{}"))
    assert not await store.put_webhook_record(_write("b", "{}", new_token()))
    assert await store.get_webhook_records("endpoint") == [WebhookRecord("endpoint", "b", first.tag, _BODY)]
    second = _write("b", '{"again": true}', first.tag)
    assert await store.put_webhook_record(second)
    assert not await store.put_webhook_record(_write("b", None, first.tag))
    assert not await store.put_webhook_record(_write("absent", "{}", first.tag))
    assert await store.put_webhook_record(_write("b", None, second.tag))
    assert await store.get_webhook_records("endpoint") == []
    assert not await store.put_webhook_record(_write("b", "{}", second.tag))


@case()
async def records_are_read_by_kind_and_id(stores: Stores) -> None:
    """In the order of their ids; another kind is another record."""
    store = await stores.open()
    for id in ("c", "a", "é:{}"):
        assert await store.put_webhook_record(_write(id, f'"{id}"'))
    assert await store.put_webhook_record(_write("a", '"health"', kind="health"))
    assert [one.body for one in await store.get_webhook_records("endpoint")] == ['"a"', '"c"', '"é:{}"']
    assert [one.body for one in await store.get_webhook_records("endpoint", ["c", "no", "a"])] == ['"a"', '"c"']
    assert [one.body for one in await store.get_webhook_records("health")] == ['"health"']
    assert await store.get_webhook_records("endpoint", []) == []
    assert await store.get_webhook_records("other") == []


@case()
async def of_two_changes_one_is_written(stores: Stores) -> None:
    """Two that have read the same record cannot both change it, nor two create it."""
    many = await stores.open_many(4)
    assert sum(await asyncio.gather(*(one.put_webhook_record(_write("x", "0")) for one in many))) == 1
    [record] = await many[0].get_webhook_records("endpoint")
    writes = [_write("x", str(number), record.tag) for number in range(4)]
    written = await asyncio.gather(*(one.put_webhook_record(write) for one, write in zip(many, writes, strict=True)))
    assert sum(written) == 1
    [changed] = await many[0].get_webhook_records("endpoint")
    assert changed.tag == writes[written.index(True)].tag


@case()
async def attempts_are_listed_newest_first(stores: Stores) -> None:
    """By endpoint and in pages; they keep all that was recorded, and have the store's time."""
    store = await stores.open()
    await store.record_webhook_attempts([])
    given = [_attempt("one", f"d{number}", error="timeout" if number % 2 else None) for number in range(5)]
    await store.record_webhook_attempts(given[:4])
    await store.record_webhook_attempts([_attempt("two", "other"), given[4]])
    first = await store.list_webhook_attempts("one", PageRequest(3))
    rest = await store.list_webhook_attempts("one", PageRequest(3, first.next_cursor))
    found = [*first, *rest]
    assert rest.next_cursor is None
    assert [one.delivery_id for one in found] == ["d4", "d3", "d2", "d1", "d0"]
    assert [one.delivered for one in found] == [True, False, True, False, True]
    for one, new in zip(reversed(found), given, strict=True):
        assert all(getattr(one, name) == getattr(new, name) for name in NewWebhookAttempt.__slots__)
    times = [one.at for one in reversed(found)]
    assert times == sorted(times)
    assert times[0].utcoffset() is not None
    assert await _deliveries(store, "two") == ["other"]
    assert await _deliveries(store, "absent") == []
    await error_of(InvalidCursorError, store.list_webhook_attempts("one", PageRequest(cursor="wrong")))


@case()
async def old_attempts_are_pruned(stores: Stores) -> None:
    """Some at a time, the oldest first; later ones are listed as before."""
    store = await stores.open()
    await store.record_webhook_attempts([_attempt("one", "d0"), _attempt("one", "d1"), _attempt("one", "d2")])
    assert await store.prune_webhook_attempts(3_600.0) == 0
    assert await store.prune_webhook_attempts(0.0, limit=2) == 2
    assert await _deliveries(store, "one") == ["d2"]
    await store.record_webhook_attempts([_attempt("one", "d3")])
    assert await _deliveries(store, "one") == ["d3", "d2"]
    assert await store.prune_webhook_attempts(0.0) == 2
    await store.record_webhook_attempts([_attempt("one", "d4")])
    assert await _deliveries(store, "one") == ["d4"]


@case()
async def attributes_of_chains_are_read_alone(stores: Stores) -> None:
    """In the order of the ids, also of a chain that counts as deleted since it closed."""
    store = await stores.open()
    [held] = await started_and_claimed(store, attributes={"user": "17", "tags": ("a", "b")}, result_ttl=0.0)
    [plain] = await start(store, job())
    await store.finish([cancel(held)])
    found = await store.get_chain_attributes([plain, "absent", held.id])
    assert found[:2] == [{}, None]
    assert found[2] is None or found[2] == {"user": "17", "tags": ("a", "b")}
