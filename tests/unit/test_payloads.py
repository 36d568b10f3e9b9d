"""What may be written, what may be read, and that every refusal is the typed one."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    SecretStr,
    computed_field,
    field_validator,
)
from typing_extensions import TypedDict

from queuert.errors import ConfigurationError, DefinitionError, PayloadDecodeError, PayloadError
from queuert.payloads import DEFAULT_LIMITS, PayloadCodec, PayloadLimits


class Item(BaseModel):
    name: str
    count: int = 0
    ratio: float | None = None


class Order(BaseModel):
    items: list[Item]
    note: str | None = None
    price: Decimal = Decimal(0)


@dataclass
class Point:
    x: int
    y: float


class Options(TypedDict):
    tags: dict[str, int]


def codec(annotation: Any, limits: PayloadLimits = DEFAULT_LIMITS) -> PayloadCodec:
    return PayloadCodec(annotation, job_type="order", field="input", limits=limits)


def refusal(annotation: Any, value: object, limits: PayloadLimits = DEFAULT_LIMITS) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec(annotation, limits).encode(value)
    assert type(caught.value) is PayloadError
    return caught.value


def misread(annotation: Any, text: str | bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> PayloadDecodeError:
    with pytest.raises(PayloadDecodeError) as caught:
        codec(annotation, limits).decode(text)
    return caught.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(items=[Item(name="a"), Item(name='"q" é 😀 \n', count=-3, ratio=0.1)], price=Decimal("1.50"))),
        (Point, Point(1, 2.5)),
        (Options, {"tags": {"a": 1, "": 2}}),
        (None, None),
        (int, 10**299),
        (int, -(10**299)),
        (list[str], ["null", "NaN", "Infinity", "None", "nan", "inf", "\\u0000", "1" * 400, "1e5000", "[" * 100]),
        (dict[int, str], {1: "x"}),
        (Any, {"null": None, "a": [True, 1.5, {"b": "E+5000"}]}),
        (float, 1.7976931348623157e308),
        (float, 5e-324),
        (Decimal, Decimal("1E+299")),
        (datetime, datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (UUID, UUID("00000000-0000-0000-0000-000000000000")),
        (Annotated[int, Field(gt=0)], 3),
        (Literal["a", "b"], "b"),
        (list[Item], [Item(name=str(n)) for n in range(100)]),
        (list[str], ["0e+99999999"] * 5_000),
    ],
)
def test_a_value_round_trips(annotation: Any, value: object) -> None:
    its = codec(annotation)
    text = its.encode(value)
    json.loads(text)
    assert its.decode(text) == value
    assert its.decode(text.encode()) == value


class Mirror(BaseModel):
    model_config = ConfigDict(extra="forbid")
    value: int = Field(validation_alias="in", serialization_alias="out")


def test_aliases_need_not_be_symmetric() -> None:
    its = codec(Mirror)
    assert its.decode(its.encode({"in": 3})) == its.decode('{"in": 3}') == its.decode('{"value": 3}')


def test_a_dict_is_taken_for_its_model() -> None:
    assert json.loads(codec(Item).encode({"name": "a"})) == {"name": "a", "count": 0, "ratio": None}


@pytest.mark.parametrize(
    ("annotation", "value", "path", "reason"),
    [
        (Order, {"items": [{"name": "a"}, {"name": 3}]}, "input.items[1].name", "valid string"),
        (Order, {}, "input.items", "required"),
        (Order, {"items": [{"name": "a\x00"}]}, "input.items[0].name", "NUL"),
        (dict[str, int], {"a\x00": 1}, "input", "NUL"),
        (Any, {"a b": ["\ud800"]}, 'input["a b"][0]', "surrogate"),
        (Any, {"\udfff": 1}, "input", "surrogate"),
        (Order, {"items": [{"name": "a", "ratio": math.nan}]}, "input.items[0].ratio", "finite"),
        (Any, {"a": [1, None, -math.inf]}, "input.a[2]", "finite"),
        (float, math.inf, "input", "finite"),
        (Any, {"a": Decimal("NaN")}, "input.a", "finite"),
        (Any, {"a": Decimal("-Infinity")}, "input.a", "finite"),
        (Any, ["a\x00", 10**300, math.nan], "input[1]", "300 digits"),
        (Any, ["a\x00", "b\x00"], "input[0]", "NUL"),
        (dict[float, int], {math.nan: 1}, "input", "key"),
        (dict[float, int], {-math.inf: 1}, "input", "key"),
        (Any, {"a": {math.nan: 1}}, "input.a", "key"),
        (Any, {"a": {None: 1}}, "input.a", "key"),
        (Any, {"a": {Decimal("1e5000"): 1}}, "input.a", "300 digits"),
        (int, 10**300, "input", "300 digits"),
        (Any, [0, -(10**10_000)], "input[1]", "300 digits"),
        (Order, {"items": [], "price": Decimal("1e5000")}, "input.price", "300 digits"),
        (Decimal, Decimal("1e-301"), "input", "300 digits"),
        (Decimal, Decimal("9" * 301), "input", "300 digits"),
        (Any, {"a": nested(64)}, "input.a" + "[0]" * 63, "deeper than 64"),
        (Any, nested(100_000), "input" + "[0]" * 64, "deeper than 64"),
        (Any, ["x" * (1024 * 1024)], "input", "got 1048580"),
        (Any, [1e300] * 4_000, "input", "bytes"),
        (Any, {"a": [object()]}, "input.a[0]", "object cannot be written"),
        (Any, {"a": b"\xff"}, "input.a", "bytes cannot be written"),
        (Any, {"a": test_a_value_round_trips}, "input.a", "function"),
    ],
)
def test_a_hostile_value_is_refused_by_name(annotation: Any, value: object, path: str, reason: str) -> None:
    error = refusal(annotation, value)
    assert (error.job_type, error.field, error.path) == ("order", "input", path)
    assert reason in error.reason


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append(loop)
    error = refusal(Any, loop)
    assert (error.path, error.reason) == ("input.a[1]", "must not refer to itself")


def test_a_model_changed_after_its_check_is_refused() -> None:
    item = Item(name="a")
    vars(item).update(name=["secret"])
    error = refusal(Order, Order.model_construct(items=[item]))
    assert error.path == "input.items[0].name"
    assert "read back" in error.reason
    assert "secret" not in str(error)


def test_a_serialiser_that_its_validator_does_not_read_is_refused() -> None:
    one_way = Annotated[int, PlainSerializer(lambda value: f"number {value}")]
    assert "read back" in refusal(one_way, 3).reason


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


class Spaniel(Dog):
    ears: int


@dataclass
class Place(Point):
    z: float = 0.0


class Login(BaseModel):
    user: str
    password: SecretStr


class Labelled(BaseModel):
    tags: Sequence[str] = ()


class Quiet(BaseModel):
    """What it keeps for itself is not stored, and does not count."""

    shown: int
    hidden: int = Field(default=0, exclude=True)
    _own: object = PrivateAttr(default_factory=object)


class Rounded(BaseModel):
    value: Annotated[float, PlainSerializer(round)]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


class Coarse(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")
    wait: timedelta


class Counted(BaseModel):
    value: int

    def model_post_init(self, context: object) -> None:
        self.value += 1


class Unequal:
    """Of two of these nobody can tell whether they are equal."""


PLAIN_OBJECT = Annotated[Unequal, PlainValidator(lambda _: Unequal()), PlainSerializer(lambda _: 1)]


@pytest.mark.parametrize(
    ("annotation", "value", "path", "reason"),
    [
        (Login, Login(user="a", password=SecretStr("hidden")), "input.password", "a SecretStr is read back as another"),
        (Dog, Spaniel(name="a", ears=2), "input", "a Spaniel is read back as a Dog: what its class adds would be lost"),
        (dict[str, list[Dog]], {"x": [Dog(name="a"), Spaniel(name="b", ears=2)]}, "input.x[1]", "a Spaniel"),
        (tuple[Point, ...], (Place(1, 2.0, 3.0),), "input[0]", "a Place is read back as a Point"),
        (Cat | Dog, Dog(name="a"), "input", "a Dog is read back as a Cat: give the union a discriminator"),
        (list[Cat | Dog], [Cat(name="a"), Dog(name="a")], "input[1]", "discriminator"),
        (Rounded, Rounded(value=1.5), "input.value", "a float is read back as another one"),
        (Open, Open.model_validate({"known": 1, "more": (1, 2)}), "input.more", "a tuple is read back as a list"),
        (
            Coarse,
            Coarse(wait=timedelta(days=10**8, microseconds=1)),
            "input.wait",
            "a timedelta is read back as another",
        ),
        (Counted, Counted(value=1), "input.value", "an int is read back as another one"),
        (Any, {"at": datetime(2026, 1, 1, tzinfo=UTC)}, "input.at", "a datetime is read back as a str"),
        (Any, [{"span": (1, 2)}], "input[0].span", "a tuple is read back as a list"),
        (dict[Any, Any], {1: "a"}, "input", "the key 1 (int) is read back as another one"),
        (Any, [Dog(name="a")], "input[0]", "a Dog is read back as a dict: declare its type"),
        (Any, {"some": {1}}, "input.some", "a set is read back as a list"),
        (Sequence[Any], ({1},), "input[0]", "a set is read back as a list"),
        (Sequence[Any], (Dog(name="a"),), "input[0]", "a Dog is read back as a dict: declare its type"),
    ],
)
def test_a_value_that_would_change_is_refused(annotation: Any, value: object, path: str, reason: str) -> None:
    error = refusal(annotation, value)
    assert error.path == path
    assert error.reason.startswith("would change on the way: ")
    assert reason in error.reason
    assert "hidden" not in str(error)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Quiet, Quiet(shown=1, hidden=2)),
        (Dog | Cat, Dog(name="a")),
        (PLAIN_OBJECT, Unequal()),
        (float, 1),
        (int, "7"),
        (Dog, {"name": "a"}),
        (set[int], {1, 2}),
        (dict[int, str], {1: "a"}),
        (datetime, datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)),
        (Iterable[int], (number for number in range(3))),
        (Sequence[int], (1, 2)),
        (dict[str, Sequence[int]], {"a": (1, 2)}),
        (Labelled, Labelled()),
        (Labelled, Labelled(tags=("a",))),
        (Any, {"a": [1, 1.5, True, None, "x"]}),
    ],
)
def test_a_value_that_does_not_change_is_taken(annotation: Any, value: object) -> None:
    codec(annotation).encode(value)


def test_computed_fields_are_not_written() -> None:
    class Square(BaseModel):
        model_config = ConfigDict(extra="forbid")
        side: int

        @computed_field
        def area(self) -> int:
            return self.side**2

    assert codec(Square).encode(Square(side=2)) == '{"side":2}'


def test_a_type_of_ones_own_may_look_like_trouble() -> None:
    class Grade:
        pass

    graded = Annotated[Any, PlainValidator(lambda _: Grade()), PlainSerializer(lambda _: "NaN", when_used="json")]
    assert codec(graded).encode("A") == '"NaN"'


def test_an_endless_exponent_is_called_what_it_is() -> None:
    assert misread(Any, "1e" + "9" * 5000).reason == "must not contain a number of more than 300 digits"


def test_a_validator_that_breaks_is_a_payload_error() -> None:
    class Broken(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def look_up(cls, value: str) -> str:
            raise KeyError(value)

    assert "KeyError" in refusal(Broken, {"name": "a"}).reason
    error = misread(Broken, '{"name": "hush"}')
    assert "KeyError" in error.reason
    assert "hush" not in str(error)


def test_limits_hold_to_the_byte_the_level_and_the_digit() -> None:
    limits = PayloadLimits(max_bytes=50, max_depth=3, max_digits=20)
    its = codec(Any, limits)
    assert len(its.encode("x" * 48)) == 50
    assert "got 51" in refusal(Any, "x" * 49, limits).reason
    assert "got 51" in refusal(Any, "é" * 24 + "x", limits).reason
    assert its.encode(nested(3)) == "[[[]]]"
    assert "deeper than 3" in refusal(Any, nested(4), limits).reason
    assert its.encode(10**20 - 1) == "9" * 20
    assert "20 digits" in refusal(Any, 10**20, limits).reason


@pytest.mark.parametrize("bad", [{"max_bytes": 0}, {"max_depth": 129}, {"max_digits": 4_001}, {"max_depth": -1}])
def test_limits_out_of_range_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        PayloadLimits(**bad)


@pytest.mark.parametrize("annotation", [Any, float, int, Decimal, Order, list[Any], str])
@pytest.mark.parametrize(
    "text",
    [
        "1e5000",
        "-1E+5000",
        "1e-5000",
        "1e-999",
        "1" + "0" * 5000,
        "1" + "0" * 400,
        "0." + "0" * 5000 + "1",
        "1e" + "9" * 5000,
        "NaN",
        "-Infinity",
        "[" * 1000 + "]" * 1000,
        "[" * 65 + "]" * 65,
        '{"a":' * 100_000,
        '"' + "x" * 10_000_000 + '"',
        "",
        "nonsense",
        '"\ud800"',
        b'"\xff"',
        '"unclosed',
    ],
)
def test_a_row_written_by_hand_is_a_decode_error_and_nothing_else(annotation: Any, text: str | bytes) -> None:
    error = misread(annotation, text)
    assert error.path == "input"


@pytest.mark.parametrize("value", [1.7976931348623157e308, -1e300, 5e-324, 2.2250738585072014e-308])
def test_a_float_is_read_as_postgres_writes_it(value: float) -> None:
    assert codec(float).decode(f"{Decimal(repr(value)):f}") == value


class Tagged(BaseModel):
    id: UUID
    kind: Literal["plain"] = "plain"
    day: datetime | None = None


@pytest.mark.parametrize(
    ("text", "path", "code"),
    [
        ('{"id": "hunter2"}', "input.id", "uuid_parsing"),
        ('{"id": 1, "kind": "hunter2"}', "input.id", "uuid_type"),
        ('{"id": "00000000-0000-0000-0000-000000000000", "kind": "hunter2"}', "input.kind", "literal_error"),
        ('{"id": "00000000-0000-0000-0000-000000000000", "day": "hunter2"}', "input.day", "datetime"),
        ('{"id": "hunter2', "input", "json_invalid"),
    ],
)
def test_a_decode_error_names_the_place_and_keeps_the_secret(text: str, path: str, code: str) -> None:
    error = misread(Tagged, text)
    assert error.path == path
    assert code in error.reason
    assert "hunter2" not in str(error)
    assert error.__suppress_context__


def test_a_validators_words_are_kept_from_decode_errors() -> None:
    class Account(BaseModel):
        password: str

        @field_validator("password")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"{value} is weak")

    assert "is weak" in refusal(Account, {"password": "hunter2"}).reason
    assert misread(Account, '{"password": "hunter2"}').reason == "the model does not allow the value [value_error]"


def test_errors_survive_pickling() -> None:
    error = misread(Order, "{}")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path) == (str(error), "input.items")


def test_a_model_may_refer_to_a_later_one() -> None:
    class Early(BaseModel):
        later: Late

    class Late(BaseModel):
        x: int

    its = codec(Early)
    with pytest.raises(DefinitionError, match="Late"):
        its.encode({"later": {"x": 1}})
    Early.model_rebuild(_types_namespace={"Late": Late})
    assert codec(Early).encode({"later": {"x": 1}}) == '{"later":{"x":1}}'


@pytest.mark.parametrize("annotation", [object(), "Item", type("Plain", (), {})])
def test_what_has_no_schema_is_a_definition_error(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="input of job type 'order'"):
        codec(annotation)


storable = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**300) + 1, 10**300 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable
    | st.sampled_from(["null", "NaN", "Infinity", '"None"', "inf", "\\u0000", "\\", "9" * 301, "1e+999", "[{" * 40])
)
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(storable, inner), max_leaves=30)
poison = st.sampled_from(
    [math.nan, math.inf, -math.inf, 10**300, -(10**5000), Decimal("1e301"), "\x00", "a\ud800", object(), {None: 1}]
)


@given(json_values)
def test_every_json_value_within_limits_round_trips(value: Any) -> None:
    its = codec(Any)
    text = its.encode(value)
    assert its.decode(text) == json.loads(text) == value


@given(json_values, poison, json_values)
def test_one_bad_value_anywhere_is_found(before: Any, bad: Any, after: Any) -> None:
    error = refusal(Any, {"a": [before, {"b": bad}], "c": after})
    assert error.path == "input.a[1].b"


@given(st.text() | st.binary())
def test_reading_any_text_gives_a_value_or_the_typed_error(text: str | bytes) -> None:
    with suppress(PayloadDecodeError):
        assert isinstance(codec(Order).decode(text), Order)


@given(st.text(st.sampled_from('[]{}",:0123456789eE+-.aNn\\')))
def test_whatever_can_be_read_can_be_read_as_json(text: str) -> None:
    try:
        value = codec(Any).decode(text)
    except PayloadDecodeError:
        return
    assert value == json.loads(text)
