"""What is read back equals what was given, or is refused with its path: and nothing else is refused."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    SecretStr,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from queuert.errors import PayloadError
from queuert.payloads import PayloadCodec

T = TypeVar("T")


def codec(annotation: Any) -> PayloadCodec:
    return PayloadCodec(annotation, job_type="order", field="input")


def refusal(annotation: Any, value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec(annotation).encode(value)
    assert type(caught.value) is PayloadError
    return caught.value


class Crossed(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Sparse(BaseModel):
    x: int = Field(default=0, exclude_if=lambda value: value == 5)


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_to_lower=True)
    name: str


class Counted(BaseModel):
    count: int
    when: datetime | None = None
    parts: list[int] = []


def changed(model: T, **values: object) -> T:
    """Assign without validation, as pydantic does by default."""
    for name, value in values.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (Crossed.model_validate({"b": 1, "a": 2}), "input.a", "an int is read back as another one"),
        (Sparse(x=5), "input.x", "an int is read back as another one"),
        (changed(Stripped(name="a"), name=" b "), "input.name", "a str is read back as another one"),
        (changed(Stripped(name="a"), name="B"), "input.name", "a str is read back as another one"),
        (changed(Counted(count=1), count="7"), "input.count", "a str is read back as an int"),
        (changed(Counted(count=1), when="2026-01-01T00:00:00"), "input.when", "a str is read back as a datetime"),
        (changed(Counted(count=1), parts=(1, 2)), "input.parts", "a tuple is read back as a list"),
    ],
)
def test_a_flat_model_that_would_change_is_refused(value: BaseModel, path: str, reason: str) -> None:
    error = refusal(type(value), value)
    assert (error.path, error.reason) == (path, f"would change on the way: {reason}")


class Array:
    """Like an array of numpy: comparing two gives an array, which has no truth value."""

    def __init__(self, *items: float) -> None:
        self.items = items
        self.shape = (len(items),)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        assert isinstance(other, Array)
        return Array(*(one == two for one, two in zip(self.items, other.items, strict=True)))

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return Array(*(not same for same in (self == other).items))

    def __or__(self, other: Array) -> Array:
        return Array(*(one or two for one, two in zip(self.items, other.items, strict=True)))

    def __and__(self, other: Array) -> Array:
        return Array(*(one and two for one, two in zip(self.items, other.items, strict=True)))

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    def all(self) -> _Truth:
        return _Truth(all(self.items))


class _Truth:
    def __init__(self, value: bool) -> None:
        self._value = value

    def all(self) -> _Truth:
        return self

    def __bool__(self) -> bool:
        return self._value


def _array(value: Any) -> Array:
    return value if isinstance(value, Array) else Array(*value)


AnArray = Annotated[Any, PlainValidator(_array), PlainSerializer(lambda value: list(value.items))]
RoundedArray = Annotated[
    Any, PlainValidator(_array), PlainSerializer(lambda value: [round(one) for one in value.items])
]
ShortArray = Annotated[Any, PlainValidator(_array), PlainSerializer(lambda value: list(value.items[:1]))]


class Measured(BaseModel):
    values: AnArray
    span: Any = None


class Odd:
    """Comparing two of these fails, and nothing else is known of them."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


ODD = Annotated[Any, PlainValidator(lambda _: Odd()), PlainSerializer(lambda _: 1)]


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Measured, Measured(values=Array(1, 2), span=(1, 2)), "input.span"),
        (list[Measured], [Measured(values=Array(1)), Measured(values=Array(2), span={1})], "input[1].span"),
        (dict[str, AnArray | tuple[int, ...]], {"a": Array(1), "b": Array(2)}, None),
        (tuple[AnArray, SecretStr], (Array(1), SecretStr("x")), "input[1]"),
        (list[RoundedArray], [Array(1.0), Array(1.5)], "input[1]"),
        (list[ShortArray], [Array(1.0), Array(1.5, 2.5)], "input[1]"),
        (AnArray, Array(1.5, 2.5), None),
        (tuple[ODD, SecretStr], (1, SecretStr("x")), "input[1]"),
        (list[ODD], [1, 2], None),
    ],
)
def test_what_cannot_be_compared_hides_nothing_beside_it(annotation: Any, value: object, path: str | None) -> None:
    if path is None:
        codec(annotation).encode(value)
    else:
        assert refusal(annotation, value).path == path


class Mixed(BaseModel):
    any: Any = None
    some: Sequence[Any] = ()
    by_name: dict[str, Sequence[int]] = {}
    either: Sequence[int] | dict[str, Any] | None = None
    next: Mixed | None = None


class Listed(NamedTuple):
    any: Any
    some: Sequence[int]


class Typed(TypedDict):
    any: Any
    some: Sequence[int]


@dataclass
class Plain:
    any: Any
    some: Sequence[int]


class Rooted(RootModel[tuple[Any, Sequence[int]]]):
    pass


class Unlike(BaseModel):
    """Has a field of another class that is a sequence there."""

    some: Any
    unlike: bool = True


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Mixed, Mixed(any=(1,), some=(1,)), "input.any"),
        (Mixed, Mixed(some=({"a": (1,)},)), "input.some[0].a"),
        (Mixed, Mixed(by_name={"a": (1, 2)}, either=(1,), some=((1,),)), "input.some[0]"),
        (Mixed, Mixed(by_name={"a": (1, 2)}, either={"a": (1,)}), "input.either.a"),
        (Mixed, Mixed(next=Mixed(some=(1,), any=(1,))), "input.next.any"),
        (tuple[Any, Sequence[int]], ((1,), (1,)), "input[0]"),
        (tuple[Sequence[int], ...], ((1,), (2,)), None),
        (Listed, Listed((1,), (1,)), "input[0]"),
        (Listed, Listed(1, (1,)), None),
        (Typed, {"any": (1,), "some": (1,)}, "input.any"),
        (Typed, {"any": 1, "some": (1,)}, None),
        (Plain, Plain((1,), (1,)), "input.any"),
        (Plain, Plain(1, (1,)), None),
        (Rooted, Rooted(((1,), (1,))), "input.root[0]"),
        (Rooted, Rooted((1, (1,))), None),
        (list[Mixed | Unlike], [Mixed(some=(1,)), Unlike(some=(1,))], "input[1].some"),
        (Sequence[int], deque([1, 2]), None),
        (Mixed, Mixed(by_name={"a": (1, 2)}, either=(1,), next=Mixed(some=(1, 2))), None),
    ],
)
def test_a_tuple_is_taken_for_a_list_only_where_a_sequence_is_declared(
    annotation: Any, value: object, path: str | None
) -> None:
    if path is None:
        codec(annotation).encode(value)
    else:
        assert refusal(annotation, value).path == path


class Frozen(BaseModel, frozen=True):
    x: Any
    hidden: int = Field(default=0, exclude=True)
    _own: object = PrivateAttr(default_factory=object)


class Locked(BaseModel, frozen=True):
    secret: SecretStr


@pydantic_dataclass
class Hiding:
    x: int
    hidden: int = Field(default=0, exclude=True)


@dataclass
class PlainHiding:
    x: int
    hidden: Annotated[int, Field(exclude=True)] = 0


@dataclass
class Derived:
    x: int
    id: UUID = field(init=False)

    def __post_init__(self) -> None:
        self.id = uuid4()


@dataclass
class Made:
    x: int
    id: UUID = field(init=False, default_factory=uuid4)
    kind: str = field(init=False, default="made")


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: Any = None


class Size(Enum):
    BIG = "big"
    TWO = 2


class Lenient(BaseModel):
    where: Path = "tmp"  # type: ignore[assignment]
    size: Size = "big"  # type: ignore[assignment]
    wait: timedelta = 5  # type: ignore[assignment]
    parts: tuple[int, ...] = []  # type: ignore[assignment]


@dataclass
class PlainLenient:
    where: Path = "tmp"  # type: ignore[assignment]


@pydantic_dataclass
class PydanticLenient:
    where: Path = "tmp"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (set[Frozen], {Frozen(x=1), Frozen(x=2)}),
        (frozenset[Frozen], frozenset([Frozen(x=1, hidden=2), Frozen(x="a", hidden=3)])),
        (set[datetime], {datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))}),
        (Hiding, Hiding(1, 2)),
        (list[PlainHiding], [PlainHiding(1, 2)]),
        (Derived, Derived(1)),
        (Made, Made(1)),
        (Anything, Anything.model_validate({"copy": [1], "json": {"dict": 1}, "x": Frozen(x=1).model_dump()})),
        (Lenient, Lenient()),
        (PlainLenient, PlainLenient()),
        (PydanticLenient, PydanticLenient()),
        (Mapping[str, int], defaultdict(int, a=1)),
    ],
)
def test_what_a_class_does_not_store_is_no_difference(annotation: Any, value: object) -> None:
    codec(annotation).encode(value)


class Careless(BaseModel):
    secret: SecretStr = SecretStr("x")
    parts: Any = (1,)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (set[Locked], {Locked(secret=SecretStr("x"))}, "input[0].secret"),
        (set[Frozen], {Frozen(x=1), Frozen(x=Decimal(1), hidden=1)}, "input[1].x"),
        (list[Hiding], [changed(Hiding(1), x="2")], "input[0].x"),
        (Made, changed(Made(1), kind="other"), "input.kind"),
        (Anything, Anything.model_validate({"copy": [datetime(2026, 1, 1)]}), "input.copy[0]"),
        (Lenient, changed(Lenient(), where="other"), "input.where"),
        (Careless, Careless(), "input.secret"),
        (Careless, Careless(secret=SecretStr("")), "input.parts"),
    ],
)
def test_what_a_class_stores_is_a_difference(annotation: Any, value: object, path: str) -> None:
    assert refusal(annotation, value).path == path


class Flag(StrEnum):
    UP = "up"


OFFSETS = st.sampled_from(
    [None, UTC, ZoneInfo("Europe/Berlin"), *(timezone(timedelta(seconds=n)) for n in (-86_399, -60, 1, 3_600, 19_800))]
)
DATETIMES = st.datetimes(timezones=OFFSETS)
TIMES = st.times(timezones=OFFSETS)
NUMBERS = st.floats() | st.sampled_from([-0.0, 1e16, 1e23])
EXACT: dict[Any, st.SearchStrategy[Any]] = {
    float: NUMBERS,
    Decimal: st.decimals() | st.sampled_from([Decimal("1.500"), Decimal("-0"), Decimal("1E+5")]),
    str: st.text(),
    bytes: st.binary(),
    date: st.dates(),
    time: TIMES,
    datetime: DATETIMES,
    timedelta: st.timedeltas(),
    Flag: st.sampled_from(Flag),
    Literal["a", 1, True, None]: st.sampled_from(["a", 1, True, None]),
    Literal[Size.TWO, 2]: st.sampled_from([Size.TWO, 2]),
    dict[int, float]: st.dictionaries(st.integers(), NUMBERS),
    dict[float, bool]: st.dictionaries(NUMBERS, st.booleans()),
    dict[datetime, str]: st.dictionaries(DATETIMES, st.text()),
    dict[Decimal, timedelta]: st.dictionaries(st.decimals(allow_nan=False), st.timedeltas()),
    dict[bool, bytes]: st.dictionaries(st.booleans(), st.binary()),
    dict[UUID, date]: st.dictionaries(st.uuids(), st.dates()),
    dict[Flag, time]: st.dictionaries(st.sampled_from(Flag), TIMES),
    set[float]: st.sets(NUMBERS),
    frozenset[bytes]: st.frozensets(st.binary()),
    tuple[time, ...]: st.lists(TIMES).map(tuple),
}


@pytest.mark.parametrize("annotation", EXACT, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_a_value_of_pythons_own_types_arrives_equal_or_is_refused(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(EXACT[annotation])
    its = codec(annotation)
    try:
        text = its.encode(value)
    except PayloadError:
        return
    read = its.decode(text)
    assert type(read) is type(value)
    if isinstance(value, datetime) and value.tzinfo:  # one that a change of clocks repeats equals nothing
        assert read.timestamp() == value.timestamp()
    else:
        assert read == value
