"""Values of all kinds arrive equal in each store, or are refused before anything is written."""

from __future__ import annotations

import math
from collections import OrderedDict
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Discriminator, SecretStr, Tag, field_serializer

from queuert import Attempt, Client, JobType, JobTypes, PostgresState, Processors
from queuert.errors import PayloadError
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.testing import JobQueue


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def state(request: pytest.FixtureRequest) -> StateAdapter:
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    return SQLiteState() if request.param == "sqlite" else RedisState(request.getfixturevalue("redis_url"))


class Size(Enum):
    BIG = "big"
    TWO = 2


class Great(Enum):
    MOLE = 6.02214076e23


class GreatFloat(float, Enum):
    MOLE = 6.02214076e23


class Amount(BaseModel):
    of: Literal[GreatFloat.MOLE]


class Flag(StrEnum):
    UP = "up"


def of_number(value: object) -> str:
    return type(value).__name__


SECONDS = timezone(timedelta(hours=1, seconds=30))
ARRIVE: list[tuple[Any, Any]] = [
    (float, 1e23),
    (Any, {"a": [1e23, -1.5e300, 1.2345678901234567e22], "1e+23": "[1e+23"}),
    (int | float, 1e23),
    (Annotated[Annotated[int, Tag("int")] | Annotated[float, Tag("float")], Discriminator(of_number)], 1e23),
    (list[int | float], [10**23, 1e16, 5e-324, 0.1]),
    (float, -0.0),
    (int, 2**64 + 1),
    (Any, [2**200 + 1, -(2**63)]),
    (Decimal, Decimal("1.500")),
    (Decimal, Decimal("1E+5")),
    (OrderedDict[str, int], OrderedDict(a=1)),
    (dict[str, int], {"bb": 1, "a": 2}),
    (datetime, datetime(2026, 1, 1, microsecond=1, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))),
    (time, time(1, 2, 3, 4, tzinfo=UTC)),
    (timedelta, timedelta(days=400, seconds=3, microseconds=7)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (timedelta, timedelta.max),
    (Size, Size.TWO),
    (Great, Great.MOLE),
    (Literal[GreatFloat.MOLE], GreatFloat.MOLE),
    (Amount, Amount(of=GreatFloat.MOLE)),
    (Literal[Flag.UP], Flag.UP),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"b", "a"})),
    (bytes, "é".encode()),
    (dict[int, str], {1: "a", 2**70: "b"}),
    (dict[float, str], {1e23: "a", 0.1: "b"}),
    (dict[Flag, int], {Flag.UP: 1}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[datetime, int], {datetime(2026, 1, 1, tzinfo=UTC): 1}),
    (str, "\x01 \u2028 \U0001f600 \\u0000 e+0"),
]
REFUSED: list[tuple[Any, Any, str, str]] = [
    (dict[str, float], {"a": math.nan}, "input.a", "finite"),
    (list[float], [0.0, -math.inf], "input[1]", "finite"),
    (Decimal, Decimal("NaN"), "input", "finite"),
    (OrderedDict[str, int], OrderedDict(bb=1, a=2), "input", "order of keys"),
    (list[datetime], [datetime(2026, 1, 1, tzinfo=SECONDS)], "input[0]", "a datetime is read back as another one"),
    (time, time(1, tzinfo=SECONDS), "input", "a time is read back as another one"),
    (Literal[Size.BIG], Size.BIG, "input", "would not be read back"),
    (Literal[Size.TWO, 2], Size.TWO, "input", "a Size is read back as an int"),
    (dict[Size, int], {Size.TWO: 1}, 'input["2"]["[key]"]', "would not be read back"),
    (dict[tuple[int, int], int], {(1, 2): 1}, 'input["1,2"]["[key]"]', "would not be read back"),
    (dict[int | str, int], {1: 1}, "input", "the key 1 (int) is read back as another one"),
    (Any, {"a": {UUID(int=1): 1}}, "input.a", "is read back as another one"),
    (Any, {"a": {1}}, "input.a", "a set is read back as a list"),
    (list[bytes], [b"\xff"], "input[0]", "a bytes cannot be written as JSON"),
    (int, 10**300, "input", "300 digits"),
    (dict[str, str], {"a": "\ud800"}, "input.a", "surrogate"),
    (dict[str, str], {"a": "\x00"}, "input.a", "NUL"),
]


def test_values_arrive_equal(state: StateAdapter) -> None:
    types = [JobType[Any, Any](f"echo-{n}", input=type_, output=type_) for n, (type_, _) in enumerate(ARRIVE)]
    arrived: dict[str, Any] = {}
    processors = Processors(JobTypes(*types))

    def echo(attempt: Attempt[Any, Any]) -> Any:
        arrived[attempt.type] = attempt.input
        return attempt.input

    for job_type in types:
        processors.handles(job_type)(echo)
    with JobQueue(state, JobTypes(*types)) as queue:
        chains = [queue.client.start_chain(job_type, value) for job_type, (_, value) in zip(types, ARRIVE, strict=True)]
        queue.run_until_idle(processors)
        for job_type, chain, (_, value) in zip(types, chains, ARRIVE, strict=True):
            for read in arrived[job_type.name], chain.result(timeout=60):
                assert read == value
                assert type(read) is type(value)


def test_values_that_would_not_arrive_equal_are_refused_before_anything_is_written(state: StateAdapter) -> None:
    types = [JobType[Any, Any](f"take-{n}", input=one[0], output=None) for n, one in enumerate(REFUSED)]
    with JobQueue(state, JobTypes(*types)) as queue:
        for job_type, (_, value, path, reason) in zip(types, REFUSED, strict=True):
            with pytest.raises(PayloadError) as caught:
                queue.client.start_chain(job_type, value)
            assert caught.value.path == path
            assert reason in caught.value.reason
        assert queue.client.count_jobs() == []


class Login(BaseModel):
    """An event's payload, which its reader knows by another type."""

    user: str
    password: SecretStr


class Shown(BaseModel):
    """A secret that is meant to be written."""

    password: SecretStr

    @field_serializer("password")
    def write(self, password: SecretStr) -> str:
        return password.get_secret_value()


def test_a_secret_in_an_event_is_refused(state: StateAdapter) -> None:
    work = JobType("work", input=None, output=int)
    with Client(state, JobTypes(work)) as client:
        chain = client.start_chain(work, None)
        for payload, path in (
            (SecretStr("x"), "step"),
            ([Login(user="ana", password=SecretStr("x"))], "step[0].password"),
        ):
            with pytest.raises(PayloadError, match="only stars are written of a secret") as refused:
                client.send_event(chain, "login", payload)
            assert refused.value.path == path
        for written in Shown(password=SecretStr("x")), Login(user="*" * 10, password=SecretStr("")):
            client.send_event(chain, "login", written)
