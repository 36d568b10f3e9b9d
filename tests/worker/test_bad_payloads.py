"""Payloads that cannot be stored are refused before anything is written; those that stand there are failed attempts."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, JobStatus, JobType, NewChain, Outcome, RetryPolicy
from queuert.errors import (
    ConfigurationError,
    InvalidIdentifierError,
    PayloadDecodeError,
    PayloadError,
    QueuertError,
    UnknownJobTypeError,
)
from queuert.observability.events import AttemptRetried, FinishFailed, LoopFailed
from tests.worker.support import WAIT, Order, Stage, anything, echo, number, order, text

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
async def test_the_client_refuses_it_and_names_the_place(stage: Stage, what: str) -> None:
    job_type, value, path = REFUSED[what]
    with pytest.raises(PayloadError) as raised:
        await stage.client.start_chain(job_type, value)
    assert raised.value.path.startswith(path)
    assert raised.value.job_type == job_type.name
    with pytest.raises(PayloadError):
        await stage.client.start_chains([NewChain(number, 1), NewChain(job_type, value), NewChain(text, "good")])
    assert stage.one("select count(*) from queuert.job") == 0


async def test_an_unknown_type_is_refused(stage: Stage) -> None:
    stranger = JobType("numbr", input=int, output=int)
    with pytest.raises(UnknownJobTypeError, match="did you mean 'number'"):
        await stage.client.start_chain(stranger, 1)
    with pytest.raises(UnknownJobTypeError):
        await stage.client.start_chain(JobType("number", input=int, output=int), 1)
    assert stage.one("select count(*) from queuert.job") == 0


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
async def test_ids_of_any_characters_make_the_round(stage: Stage, id: str) -> None:
    stage.handles(number, lambda attempt: len(attempt.job_id))
    stage.handles(text, lambda attempt: attempt.blockers[0].chain_id)
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1, id=id)
        assert await chain.result(WAIT) == len(id)
        assert (await stage.client.get_chain(id)).id == id
        assert (await stage.client.get_job(id)).id == id
        assert await (await stage.client.start_chain(text, "", blockers=[id])).result(WAIT) == id


@pytest.mark.parametrize("id", ["", "a\x00", "\ud800", "x" * 513, 7, b"x"])
async def test_ids_that_cannot_be_stored_are_refused(stage: Stage, id: Any) -> None:
    choices: list[dict[str, Any]] = [{"id": id}, {"blockers": [id]}]
    for settings in choices:
        with pytest.raises((InvalidIdentifierError, TypeError, AttributeError)) as raised:
            await stage.client.start_chain(number, 1, **settings)
        assert isinstance(raised.value, QueuertError) or not isinstance(id, str)
    assert stage.one("select count(*) from queuert.job") == 0


async def test_ids_that_cannot_exist_are_not_found(stage: Stage) -> None:
    for id in ("nowhere", "a\x00", "\ud800", "x" * 10_000, ""):
        for look in (stage.client.get_chain, stage.client.get_job):
            with pytest.raises(QueuertError):
                await look(id)


@pytest.mark.parametrize("priority", [1_000_001, -1_000_001, 1.5, "1", None, True])
async def test_odd_priorities_are_refused(stage: Stage, priority: Any) -> None:
    with pytest.raises(ConfigurationError):
        await stage.client.start_chain(number, 1, priority=priority)
    assert stage.one("select count(*) from queuert.job") == 0


async def test_blockers_are_not_one_string(stage: Stage) -> None:
    with pytest.raises(InvalidIdentifierError, match="got a string"):
        await stage.client.start_chain(number, 1, blockers="abc")


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
async def test_a_bad_row_is_one_failed_attempt_and_the_next_job_runs(stage: Stage, what: str) -> None:
    type, input = BY_HAND[what]
    for job_type in (number, text, order, anything):
        stage.handles(job_type, echo, retry=ONCE)
    stage.insert(type, input, id="bad")
    async with stage.worker() as worker:
        chain = await (await stage.client.get_chain("bad")).wait(WAIT)
        assert await (await stage.client.start_chain(number, 1)).result(WAIT) == 1
        assert worker.health().live
    assert chain.error is not None
    assert chain.error.kind == "decode"
    assert stage.rows("select status, attempt from queuert.job where id = 'bad'") == [("failed", 1)]
    assert stage.log.of(LoopFailed) + stage.log.of(FinishFailed) == []
    with pytest.raises(PayloadDecodeError):
        assert (await stage.client.get_chain("bad")).input


async def test_bad_rows_do_not_hurt_the_good_ones_of_the_same_claim(stage: Stage) -> None:
    for job_type in (number, text, order, anything):
        stage.handles(job_type, echo, retry=ONCE)
    for one, (type, input) in enumerate(BY_HAND.values()):
        stage.insert(type, input, id=f"bad-{one}")
    good = await stage.client.start_chains([NewChain(number, one) for one in range(20)])
    async with stage.worker(concurrency=40):
        closed = await stage.client.wait(good, timeout=WAIT)
        await stage.client.wait(
            [await stage.client.get_chain(f"bad-{one}") for one in range(len(BY_HAND))], timeout=WAIT
        )
    assert [await chain.result() for chain in closed] == list(range(20))


async def test_odd_errors_in_rows_can_be_read(stage: Stage) -> None:
    for one, error in enumerate(["null", "1", '"text"', "[]", "{}", '{"kind": 3, "message": [1]}', "1e5000"]):
        stage.insert("number", "1", id=f"odd-{one}")
        stage.rows("update queuert.job set error = %s::jsonb where id = %s", error, f"odd-{one}")
        await stage.client.get_job(f"odd-{one}")
        await stage.client.get_chain(f"odd-{one}")


async def test_a_bad_row_that_is_mended_goes_through(stage: Stage) -> None:
    stage.insert("number", '"three"', id="bad")

    @stage.processors.handles(number, retry=RetryPolicy(initial_delay=0.05, jitter=0.0))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    async with stage.worker():
        await stage.log.wait_for(AttemptRetried, job_id="bad")
        stage.rows("update queuert.job set input = '3' where id = 'bad'")
        assert await (await stage.client.get_chain("bad", number)).result(WAIT) == 3
    assert (await stage.job("bad")).status is JobStatus.COMPLETED
