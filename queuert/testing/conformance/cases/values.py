"""What goes in comes out: names of any kind, JSON of any kind."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random

from queuert.jobs import ChainStatus, JobError, JobStatus
from queuert.state.types import Finish, FinishKind
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    go_on,
    job,
    lost_to_reaper,
    read,
    read_chain,
    reap,
    run_out,
    start,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

HOSTILE = (
    "it's",
    'say "no"',
    "back\\slash\\",
    "line\nbreak\r\tand tab",
    "100% %s %(id)s %%",
    '{"a": [1, null]}, (2) ',
    "{schema} ${x} $1 :y ?",
    "'; DROP TABLE job; --",
    "\u00fcml\u00e4ut \u4e2d\u6587 \U0001f600 \u202e\u0301",
    "\x01\x1f\x7f",
    " ",
    "null",
    "*",
    "a:b{c}d/e\\",
)


@case()
async def hostile_names(stores: Stores) -> None:
    """Ids, types and holders of any characters pass through every operation as they are."""
    store = await stores.open()
    await start(store, *(job(text, id=text) for text in HOSTILE))
    await start(store, *(job("waits", id=f"after {text}", blockers=[text]) for text in HOSTILE))
    for text in HOSTILE:
        [claimed] = await store.claim(ask(text, holder=text))
        assert (claimed.id, claimed.type, claimed.chain_id, claimed.chain_type) == (text, text, text, text)
        assert (await read(store, text)).holder == text
        following = job(text, id=f"then {text}", trace_context=text)
        assert (await store.finish([go_on(claimed, following)]))[0].written
        [following_claimed] = await store.claim(ask(text))
        assert following_claimed.trace_context == text
        [result] = await store.finish([complete(following_claimed)])
        assert result.due_types == ("waits",)
        assert [one.chain_id for one in await store.get_blockers(f"after {text}")] == [text]
        assert (await read_chain(store, text)).status is ChainStatus.COMPLETED
    assert {one.type for one in await store.count_jobs()} == {*HOSTILE, "waits"}


@case()
async def longest_names(stores: Stores) -> None:
    """Ids, types and holders of 512 characters, or of 1,000 bytes of UTF-8, as hard to compress as they come."""
    store = await stores.open()
    for alphabet, length in ((range(0x1F300, 0x1F8D0), 250), (range(0x21, 0x7F), 512)):
        first, second = (_scrambled(alphabet, length, seed) for seed in (1, 2))
        await start(store, job(first, id=first))
        [waiting] = await store.start_jobs([job(second, id=second, blockers=[first])])
        assert waiting.status is JobStatus.BLOCKED
        [claimed] = await store.claim(ask(first, holder=second))
        assert (claimed.id, claimed.type, (await read(store, first)).holder) == (first, first, second)
        assert (await store.finish([complete(claimed)]))[0].due_types == (second,)


def _scrambled(alphabet: range, length: int, seed: int) -> str:
    return "".join(map(chr, Random(seed).choices(alphabet, k=length)))


@case()
async def hostile_errors(stores: Stores) -> None:
    """Messages, classes and tracebacks of errors come out as they went in."""
    store = await stores.open()
    text = "".join(HOSTILE)
    await start(store, job())
    error = JobError("handler", text, text, text * 100)
    await store.finish([Finish(claimed := await claim_one(store), FinishKind.FAIL, error=error)])
    assert (await read(store, claimed.id)).last_error == error
    assert (await read_chain(store, claimed.id)).error == error


@case()
async def hostile_holder_of_an_expired_lease(stores: Stores) -> None:
    """The reaper names the holder, whatever it is called."""
    store = await stores.open()
    await start(store, job())
    await run_out(store, await claim_one(store, holder=HOSTILE[5]))
    [reaped] = await reap(store)
    assert reaped.holder == HOSTILE[5]
    found = await read(store, reaped.id)
    assert found.last_error is not None
    assert HOSTILE[5] in found.last_error.message


@case()
async def json_null(stores: Stores) -> None:
    """A null input and a null output are values: the chain is completed with null."""
    store = await stores.open()
    await start(store, job(input="null"))
    claimed = await claim_one(store)
    assert claimed.input == "null"
    await store.finish([complete(claimed, "null")])
    chain = await read_chain(store, claimed.id)
    assert (chain.status, chain.input, chain.output) == (ChainStatus.COMPLETED, "null", "null")
    assert (await read(store, claimed.id)).output is None


@case()
async def complex_json(stores: Stores) -> None:
    """Nested values, empty ones and odd keys come out equal, as input, as output and through a continuation."""
    store = await stores.open()
    value = {"": [], "a": {"b": [1, "2", None, True, False, {}, [[[]]]]}, **{text: text for text in HOSTILE}}
    await start(store, job(input=json.dumps(value)))
    claimed = await claim_one(store)
    assert json.loads(claimed.input) == value
    await store.finish([go_on(claimed, job(input=json.dumps(value, ensure_ascii=False)))])
    following = await claim_one(store)
    assert json.loads(following.input) == value
    await store.finish([complete(following, json.dumps(value))])
    output = (await read_chain(store, claimed.id)).output
    assert output is not None and json.loads(output) == value


@case()
async def numbers_keep_their_value(stores: Stores) -> None:
    """Numbers beyond a double's range and precision keep their value, in and out."""
    store = await stores.open()
    text = "[1e400, -1e-400, 0.1, 12345678901234567890123456789, 0.30000000000000004, 1.7976931348623157e308]"
    await start(store, job(input=text))
    claimed = await claim_one(store)
    expected = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert json.loads(claimed.input, parse_float=Decimal, parse_int=Decimal) == expected
    await store.finish([complete(claimed, text)])
    output = (await read_chain(store, claimed.id)).output
    assert output is not None
    assert json.loads(output, parse_float=Decimal, parse_int=Decimal) == expected


@case()
async def input_outlives_failures(stores: Stores) -> None:
    """A job that was reaped is claimed again with the same input."""
    store = await stores.open()
    lost = await lost_to_reaper(store)
    again = await claim_one(store)
    assert (again.id, again.input) == (lost.id, lost.input)
