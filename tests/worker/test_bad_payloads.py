"""Payloads that cannot be stored are refused before anything is written; those that stand there are failed attempts."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, JobStatus, JobType, NewChain, Outcome, RetryPolicy
from queuert.errors import (
    ConfigurationError,
    DuplicateJobTypeError,
    InvalidIdentifierError,
    PayloadDecodeError,
    PayloadError,
    QueuertError,
    UnknownJobTypeError,
)
from queuert.observability.events import AttemptRetried, FinishFailed, LoopFailed
from tests.support.harness import PostgresHarness
from tests.support.job_types import Order, anything, echo, number, order, text
from tests.support.waiting import WAIT

ONCE = RetryPolicy(max_attempts=1)


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, tuple[JobType[Any, Any], Any, str]] = {
    "wrong model": (order, {"name": 3}, "input.name"),
    "missing field": (order, {"lines": []}, "input.name"),
    "wrong item": (order, {"name": "x", "lines": [1, "two"]}, "input.lines[1]"),
    "another type": (number, "three", "input"),
    "a model changed after its check": (order, Order.model_construct(name="x", lines=["a"]), "input.lines[0]"),
    "nul": (text, "a\x00b", "input"),
    "nul deep inside": (anything, {"a": [{"b": "\x00"}]}, "input.a[0].b"),
    "nul in a key": (anything, {"a": {"\x00": 1}}, "input.a"),
    "lone surrogate": (text, "a\ud800", "input"),
    "lone surrogate in a key": (anything, {"\udfff": 1}, "input"),
    "not a number": (anything, {"x": float("nan")}, "input.x"),
    "infinite": (anything, [1.0, float("-inf")], "input[1]"),
    "many digits": (anything, {"n": 10**5000}, "input.n"),
    "deep": (anything, deep(1_000), "input"),
    "endless": (anything, endless(), "input"),
    "huge": (text, "x" * 10_000_000, "input"),
    "huge in pieces": (anything, ["x" * 1_000] * 10_000, "input"),
    "an object": (anything, object(), "input"),
    "bytes": (anything, b"\xff", "input"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_the_client_refuses_it_and_names_the_place(harness: PostgresHarness, what: str) -> None:
    job_type, value, path = REFUSED[what]
    with pytest.raises(PayloadError) as raised:
        await harness.client.start_chain(job_type, value)
    assert raised.value.path.startswith(path)
    assert raised.value.job_type == job_type.name
    with pytest.raises(PayloadError):
        await harness.client.start_chains([NewChain(number, 1), NewChain(job_type, value), NewChain(text, "good")])
    assert harness.one("select count(*) from queuert.job") == 0


async def test_an_unknown_type_is_refused(harness: PostgresHarness) -> None:
    stranger = JobType("numbr", input=int, output=int)
    with pytest.raises(UnknownJobTypeError, match="did you mean 'number'"):
        await harness.client.start_chain(stranger, 1)
    with pytest.raises(DuplicateJobTypeError, match="is not the one that is registered under this name"):
        await harness.client.start_chain(JobType("number", input=int, output=int), 1)
    assert harness.one("select count(*) from queuert.job") == 0


@pytest.mark.parametrize(
    "id",
    [
        "plain",
        "a b",
        "ü",
        "日本",
        "🎉",
        "'; drop table queuert.job; --",
        "%s %(id)s",
        "\\",
        '"',
        "\n",
        "\u202e",
        "x" * 512,
        "null",
        "{}",
        "$1",
    ],
)
async def test_ids_of_any_characters_make_the_round(harness: PostgresHarness, id: str) -> None:
    harness.handles(number, lambda attempt: len(attempt.job_id))
    harness.handles(text, lambda attempt: attempt.blockers[0].chain_id)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1, id=id)
        assert await chain.result(WAIT) == len(id)
        assert (await harness.client.get_chain(id)).id == id
        assert (await harness.client.get_job(id)).id == id
        assert await (await harness.client.start_chain(text, "", blockers=[id])).result(WAIT) == id


@pytest.mark.parametrize("id", ["", "a\x00", "\ud800", "x" * 513, 7, b"x"])
async def test_ids_that_cannot_be_stored_are_refused(harness: PostgresHarness, id: Any) -> None:
    choices: list[dict[str, Any]] = [{"id": id}, {"blockers": [id]}]
    for settings in choices:
        with pytest.raises((InvalidIdentifierError, TypeError, AttributeError)) as raised:
            await harness.client.start_chain(number, 1, **settings)
        assert isinstance(raised.value, QueuertError) or not isinstance(id, str)
    assert harness.one("select count(*) from queuert.job") == 0


async def test_ids_that_cannot_exist_are_not_found(harness: PostgresHarness) -> None:
    for id in ("nowhere", "a\x00", "\ud800", "x" * 10_000, ""):
        for look in (harness.client.get_chain, harness.client.get_job):
            with pytest.raises(QueuertError):
                await look(id)


@pytest.mark.parametrize("priority", [1_000_001, -1_000_001, 1.5, "1", None, True])
async def test_odd_priorities_are_refused(harness: PostgresHarness, priority: Any) -> None:
    with pytest.raises(ConfigurationError):
        await harness.client.start_chain(number, 1, priority=priority)
    assert harness.one("select count(*) from queuert.job") == 0


async def test_blockers_are_not_one_string(harness: PostgresHarness) -> None:
    with pytest.raises(InvalidIdentifierError, match="got a string"):
        await harness.client.start_chain(number, 1, blockers="abc")


# --- rows that were written by hand -----------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[str, str]] = {
    "wrong model": ("order", '{"name": 3}'),
    "another type": ("number", '"three"'),
    "null": ("number", "null"),
    "many digits": ("anything", "1e5000"),
    "more digits": ("anything", "[1e130000]"),
    "deep": ("anything", "[" * 1_000 + "]" * 1_000),
    "deeper": ("anything", '{"a":' * 6_000 + "1" + "}" * 6_000),
    "huge": ("text", '"' + "x" * 10_000_000 + '"'),
    "an integer beyond bounds": ("number", "1" * 4_500),
    "not quite a number": ("number", "1.5"),
}


@pytest.mark.parametrize("what", BY_HAND)
async def test_a_bad_row_is_one_failed_attempt_and_the_next_job_runs(harness: PostgresHarness, what: str) -> None:
    type, input = BY_HAND[what]
    for job_type in (number, text, order, anything):
        harness.handles(job_type, echo, retry=ONCE)
    harness.insert(type, input, id="bad")
    async with harness.worker() as worker:
        chain = await (await harness.client.get_chain("bad")).wait(WAIT)
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
        assert worker.health().live
    assert chain.error is not None
    assert chain.error.kind == "decode"
    assert harness.rows("select status, attempt from queuert.job where id = 'bad'") == [("failed", 1)]
    assert harness.log.of(LoopFailed) + harness.log.of(FinishFailed) == []
    with pytest.raises(PayloadDecodeError):
        assert (await harness.client.get_chain("bad")).input


async def test_bad_rows_do_not_hurt_the_good_ones_of_the_same_claim(harness: PostgresHarness) -> None:
    for job_type in (number, text, order, anything):
        harness.handles(job_type, echo, retry=ONCE)
    for one, (type, input) in enumerate(BY_HAND.values()):
        harness.insert(type, input, id=f"bad-{one}")
    good = await harness.client.start_chains([NewChain(number, one) for one in range(20)])
    async with harness.worker(concurrency=40):
        closed = await harness.client.wait(good, timeout=WAIT)
        await harness.client.wait(
            [await harness.client.get_chain(f"bad-{one}") for one in range(len(BY_HAND))], timeout=WAIT
        )
    assert [await chain.result() for chain in closed] == list(range(20))


async def test_odd_errors_in_rows_can_be_read(harness: PostgresHarness) -> None:
    for one, error in enumerate(["null", "1", '"text"', "[]", "{}", '{"kind": 3, "message": [1]}', "1e5000"]):
        harness.insert("number", "1", id=f"odd-{one}")
        harness.rows("update queuert.job set error = %s::jsonb where id = %s", error, f"odd-{one}")
        await harness.client.get_job(f"odd-{one}")
        await harness.client.get_chain(f"odd-{one}")


async def test_a_bad_row_that_is_mended_goes_through(harness: PostgresHarness) -> None:
    harness.insert("number", '"three"', id="bad")

    @harness.processors.handles(number, retry=RetryPolicy(initial_delay=0.05, jitter=0.0))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    async with harness.worker():
        await harness.log.wait_for(AttemptRetried, job_id="bad")
        harness.rows("update queuert.job set input = '3' where id = 'bad'")
        assert await (await harness.client.get_chain("bad", number)).result(WAIT) == 3
    assert (await harness.job("bad")).status is JobStatus.COMPLETED
