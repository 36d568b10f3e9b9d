"""What formats make of payloads, without a store."""

from __future__ import annotations

import base64
import json
import pickle
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, field_validator
from typing_extensions import TypedDict

from queuert import JobType, JobTypes
from queuert.codecs import PLAIN, Codec, CodecError, PayloadFormat, Place, Serde, ZlibCodec
from queuert.errors import ConfigurationError, DefinitionError, PayloadDecodeError, PayloadError
from queuert.payloads import PayloadLimits
from tests.codecs.secret import BINARY, SECRET, WORD, MsgpackSerde, Patient, encryption, heal, job_types

MSGPACK = PayloadFormat(MsgpackSerde())
ZIPPED = PayloadFormat(codecs=[ZlibCodec()])
FORMATS = {"plain": PLAIN, "msgpack": MSGPACK, "zipped": ZIPPED, "encrypted": SECRET, "encrypted msgpack": BINARY}


class Shout(Codec):
    """A codec of a test's own, that does whatever the test wants."""

    name = "shout"

    def __init__(self, *, note: Any = "", encoded: Any = None, decoded: Any = None) -> None:
        self._note, self._encoded, self._decoded = note, encoded, decoded

    @property
    def note(self) -> str:
        return self._note  # type: ignore[no-any-return]

    def encode(self, data: bytes, place: Place) -> bytes:
        if isinstance(self._encoded, Exception):
            raise self._encoded
        return data.upper() if self._encoded is None else self._encoded

    def decode(self, data: bytes, place: Place) -> bytes:
        if isinstance(self._decoded, Exception):
            raise self._decoded
        return data.lower() if self._decoded is None else self._decoded


def anything(format: PayloadFormat | None, limits: PayloadLimits | None = None) -> JobType[Any, Any]:
    return JobType("anything", input=Any, output=Any, format=format, limits=limits or PayloadLimits())


def text_of(format: PayloadFormat) -> JobType[str, str]:
    return JobType("text", input=str, output=str, format=format)


def refusal(job_type: JobType[Any, Any], value: Any) -> PayloadError:
    with pytest.raises(PayloadError) as raised:
        job_type.encode_input(value)
    assert type(raised.value) is PayloadError
    return raised.value


def unreadable(job_type: JobType[Any, Any], text: str) -> PayloadDecodeError:
    with pytest.raises(PayloadDecodeError) as raised:
        job_type.decode_input(text)
    assert raised.value.job_type == job_type.name
    assert raised.value.field == "input"
    return raised.value


# --- there and back ---------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@given(value=JSON_VALUES)
def test_json_goes_through_every_format(name: str, value: Any) -> None:
    job_type = anything(FORMATS[name])
    text = job_type.encode_input(value)
    assert job_type.decode_input(text) == value
    as_jsonb = json.dumps(json.loads(text), indent=1)  # A store may write JSON in its own way.
    assert job_type.decode_output(job_type.encode_output(value)) == job_type.decode_input(as_jsonb) == value


@pytest.mark.parametrize("format", [MSGPACK, BINARY])
@given(value=st.recursive(st.binary() | st.integers(0, 9), st.lists, max_leaves=9))
def test_bytes_go_through_a_serde_that_has_them(format: PayloadFormat, value: Any) -> None:
    job_type = anything(format)
    assert job_type.decode_input(job_type.encode_input({"value": value})) == {"value": value}
    with pytest.raises(PayloadError, match=r"input\.value: would change on the way: a tuple is read back as a list"):
        job_type.encode_input({"value": (value,)})


@pytest.mark.parametrize("format", [MSGPACK, ZIPPED, BINARY])
def test_the_order_of_keys_is_kept_where_the_store_sees_no_keys(format: PayloadFormat) -> None:
    ordered = OrderedDict(bb=1, a=2)
    job_type = JobType("order", input=OrderedDict[str, int], output=None, format=format)
    assert job_type.decode_input(job_type.encode_input(ordered)) == ordered
    assert "order of keys" in str(refusal(JobType("order", input=OrderedDict[str, int], output=None), ordered))


@given(
    st.builds(
        Patient,
        name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        scan=st.binary(),
        number=st.uuids() | st.none(),
        born=st.datetimes(timezones=st.just(UTC)) | st.none(),
        fee=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6),
    )
)
def test_a_model_goes_through_messagepack(patient: Patient) -> None:
    assert heal.decode_input(heal.encode_input(patient)) == patient


def test_plain_json_has_no_bytes_as_ever() -> None:
    assert "bytes" in str(refusal(anything(None), b"\xff"))
    assert "bytes" in str(refusal(JobType("b", input=bytes, output=None), b"\xff"))
    assert anything(None).encode_input({"a": [1]}) == anything(PLAIN).encode_input({"a": [1]}) == '{"a":[1]}'


class Mode(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    ids: set[UUID]
    modes: dict[Mode, tuple[int, ...]]
    fee: Decimal


def test_a_strict_model_is_read_by_the_rules_for_json() -> None:
    value = Strict(
        at=datetime(2030, 1, 2, tzinfo=UTC), ids={UUID(int=5)}, modes={Mode.RED: (1, 2)}, fee=Decimal("1.50")
    )
    job_type = JobType("strict", input=Strict, output=None, format=BINARY)
    assert job_type.decode_input(job_type.encode_input(value)) == value


class Spied(TypedDict):
    s: list[Any]
    k: dict[int, bytes]
    t: tuple[Mode, set[bytes]]
    m: Patient


def test_a_serde_is_given_json_types_and_bytes() -> None:
    seen: list[Any] = []

    class Spy(MsgpackSerde):
        def dumps(self, value: Any) -> bytes:
            seen.append(value)
            return super().dumps(value)

    job_type = JobType("spy", input=Spied, output=None, format=PayloadFormat(Spy()))
    job_type.encode_input(
        {
            "s": [Text("a"), Number(1)],
            "k": {1: b"\xff"},
            "t": (Mode.RED, {b"x"}),
            "m": Patient(name="a", born=datetime(2030, 1, 2, tzinfo=UTC)),
        }
    )
    assert seen == [
        {
            "s": ["a", 1],
            "k": {"1": b"\xff"},
            "t": ["red", [b"x"]],
            "m": {"name": "a", "scan": b"", "number": None, "born": "2030-01-02T00:00:00Z", "fee": "0"},
        }
    ]


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_the_envelope_names_the_steps_and_nothing_else_is_seen() -> None:
    text = heal.encode_input(Patient(name=WORD))
    envelope = json.loads(text)
    assert list(envelope) == ["queuert.codec", "queuert.payload"]
    assert envelope["queuert.codec"] == ["msgpack", "aes-gcm:2030-02"]
    assert WORD.encode() not in base64.b64decode(envelope["queuert.payload"])
    assert WORD not in text


def test_zlib_makes_it_smaller() -> None:
    assert len(text_of(ZIPPED).encode_input("x" * 10_000)) < 200


def test_no_plain_payload_can_pass_for_an_envelope() -> None:
    forged = json.loads(anything(ZIPPED).encode_input("from outside"))
    for format in (None, PLAIN, PayloadFormat(also_reads=[ZIPPED])):
        error = refusal(anything(format), forged)
        assert error.reason == 'the key "queuert.codec" is reserved: use another one'
        assert anything(format).encode_input([forged])  # Only at the top is it an envelope.
    deep = anything(ZIPPED)
    assert deep.decode_input(deep.encode_input(forged)) == forged


# --- one format after another -----------------------------------------------------------------------------------------


def test_plain_rows_stay_readable() -> None:
    assert text_of(SECRET).decode_input('"written before"') == "written before"
    assert text_of(MSGPACK).decode_input('"written before"') == "written before"


def test_plain_rows_can_be_refused() -> None:
    strict = PayloadFormat(codecs=[encryption], also_reads=())
    error = unreadable(text_of(strict), '"put here by a stranger"')
    assert "plain JSON" in error.reason
    assert "stranger" not in str(error)
    assert text_of(strict).decode_input(text_of(strict).encode_input("mine")) == "mine"


def test_from_one_format_to_the_next_and_back() -> None:
    first = PayloadFormat(also_reads=[SECRET])
    second = PayloadFormat(codecs=SECRET.codecs, also_reads=[PLAIN, MSGPACK])
    written = [text_of(format).encode_input("a") for format in (PLAIN, first, second)]
    assert written[:2] == ['"a"', '"a"']
    for format in (first, second):
        assert [text_of(format).decode_input(text) for text in written] == ["a", "a", "a"]
    assert text_of(second).decode_input(text_of(MSGPACK).encode_input("b")) == "b"
    assert not PayloadFormat(codecs=SECRET.codecs, also_reads=[MSGPACK]).reads_plain


@pytest.mark.parametrize("name", ["plain", "msgpack", "zipped", "encrypted msgpack"])
def test_an_unknown_format_is_a_typed_error(name: str) -> None:
    error = unreadable(text_of(FORMATS[name]), text_of(SECRET).encode_input(WORD))
    assert "json, zlib, aes-gcm:2030-02" in error.reason
    assert WORD not in str(error)


@pytest.mark.parametrize(
    "envelope",
    [
        {"queuert.codec": ["json", "zlib"]},
        {"queuert.codec": ["json", "zlib"], "queuert.payload": 5},
        {"queuert.codec": ["json", "zlib"], "queuert.payload": "no base64!"},
        {"queuert.codec": ["json", "zlib"], "queuert.payload": "été"},
        {"queuert.codec": ["json", "zlib"], "queuert.payload": "", "more": 1},
        {"queuert.codec": [], "queuert.payload": ""},
        {"queuert.codec": None, "queuert.payload": ""},
        {"queuert.codec": [["json"], "zlib"], "queuert.payload": ""},
        {"queuert.codec": ["json"], "queuert.payload": "MQ=="},
        {"queuert.codec": ["json", "\ud800" * 5_000], "queuert.payload": ""},
    ],
)
@pytest.mark.parametrize("format", [PLAIN, ZIPPED])
def test_a_damaged_envelope_is_a_typed_error(format: PayloadFormat, envelope: dict[str, Any]) -> None:
    error = unreadable(text_of(format), json.dumps(envelope))
    assert len(str(error)) < 500
    assert text_of(format).shown("input", envelope) == envelope


@given(st.binary(max_size=50), st.sampled_from(["zlib", "aes-gcm:2030-01", "aes-gcm"]))
def test_whatever_bytes_stand_there(data: bytes, step: str) -> None:
    format = ZIPPED if step == "zlib" else PayloadFormat(codecs=[encryption])
    unreadable(
        text_of(format),
        json.dumps({"queuert.codec": ["json", step], "queuert.payload": base64.b64encode(data).decode()}),
    )


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_small_text_that_unpacks_to_much_is_refused() -> None:
    roomy = JobType("text", input=str, output=str, format=ZIPPED, limits=PayloadLimits(max_bytes=100_000))
    tight = JobType("text", input=str, output=str, format=ZIPPED, limits=PayloadLimits(max_bytes=1_000))
    error = unreadable(tight, roomy.encode_input("x" * 50_000))
    assert "zlib: the data must be at most 4000 bytes" in error.reason


@pytest.mark.parametrize("format", [PLAIN, MSGPACK, ZIPPED, SECRET, BINARY])
def test_limits_hold_for_the_value(format: PayloadFormat) -> None:
    limits = PayloadLimits(max_bytes=1_000, max_depth=3, max_digits=18)
    job_type = anything(format, limits)
    assert "bytes" in refusal(job_type, "x" * 2_000).reason
    assert "nested deeper than 3" in refusal(job_type, [[[[1]]]]).reason
    assert "at most 18 digits" in refusal(job_type, {"n": 10**18}).reason
    assert refusal(job_type, {"a": [float("nan")]}).path == "input.a[0]"
    assert refusal(job_type, {"a": ["\0"]}).path == "input.a[0]"
    assert refusal(job_type, {"a": ["\ud800"]}).path == "input.a[0]"


def test_limits_hold_for_what_is_stored() -> None:
    limits = PayloadLimits(max_bytes=1_000)
    assert "must be at most 1000 bytes as stored" in refusal(anything(BINARY, limits), "x" * 900).reason
    assert anything(SECRET, limits).encode_input("x" * 900)  # Compressed first.


def test_limits_hold_for_what_a_serde_reads() -> None:
    roomy, tight = anything(MSGPACK), anything(MSGPACK, PayloadLimits(max_depth=3))
    assert "nested deeper than 3" in unreadable(tight, roomy.encode_input([[[[1]]]])).reason


def test_keys_that_become_one_are_refused() -> None:
    assert "two keys" in refusal(anything(MSGPACK), {1: "a", "1": "b"}).reason


# --- serdes and codecs that fail --------------------------------------------------------------------------------------


def shouting(**does: Any) -> JobType[str, str]:
    return text_of(PayloadFormat(codecs=[Shout(**does)]))


def test_a_codec_of_ones_own() -> None:
    job_type = shouting(note="loud")
    text = job_type.encode_input("hello")
    assert json.loads(text)["queuert.codec"] == ["json", "shout:loud"]
    assert job_type.decode_input(text) == "hello"


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ({"encoded": ValueError(WORD)}, "shout: it raised ValueError"),
        ({"encoded": CodecError("it is too quiet")}, "shout: it is too quiet"),
        ({"encoded": WORD}, "shout: it returned str, not bytes"),
        ({"note": WORD * 10}, "shout: its note must be at most 100 printable ASCII characters"),
        ({"note": None}, "shout: its note must be at most 100 printable ASCII characters"),
    ],
)
def test_a_codec_that_cannot_write(does: dict[str, Any], reason: str) -> None:
    assert refusal(shouting(**does), "a").reason == reason


@pytest.mark.parametrize(
    ("decoded", "reason"),
    [
        (ValueError(WORD), "shout:a: it raised ValueError"),
        (RecursionError(WORD), "shout:a: it raised RecursionError"),
        (CodecError("it is too quiet"), "shout:a: it is too quiet"),
        (WORD, "shout:a: it returned str, not bytes"),
        (WORD.encode(), "Invalid JSON: expected value at line 1 column 1 [json_invalid]"),
    ],
)
def test_a_codec_that_cannot_read(decoded: Any, reason: str) -> None:
    text = shouting(note="a").encode_input("x")
    error = unreadable(shouting(note="b", decoded=decoded), text)
    assert error.reason == reason
    assert WORD not in str(error)


class Broken(MsgpackSerde):
    """Fails at one end."""

    def __init__(self, end: str) -> None:
        self.end = end

    def dumps(self, value: Any) -> bytes:
        if self.end == "dumps":
            raise ValueError(WORD)
        return super().dumps(value)

    def loads(self, data: bytes) -> Any:
        if self.end == "loads":
            raise ValueError(WORD)
        return object() if self.end == "odd" else super().loads(data)


@pytest.mark.parametrize("end", ["dumps", "loads", "odd"])
def test_a_serde_that_fails(end: str) -> None:
    assert refusal(text_of(PayloadFormat(Broken(end))), "x").reason
    if end != "dumps":
        error = unreadable(text_of(PayloadFormat(Broken(end))), text_of(MSGPACK).encode_input("x"))
        assert WORD not in str(error)


def test_a_serde_that_would_not_be_read_back_is_refused() -> None:
    class Wrong(MsgpackSerde):
        def loads(self, data: bytes) -> Any:
            return 5

    assert "would not be read back" in refusal(text_of(PayloadFormat(Wrong())), "x").reason


class Gossip(BaseModel):
    secret: str

    @field_validator("secret")
    @classmethod
    def _tells(cls, value: str) -> str:
        raise ValueError(f"{value} is not allowed")


def test_errors_of_sealed_payloads_do_not_repeat_what_a_model_says() -> None:
    """A failed output ends up in the store as an error, in plain text."""
    for format, tells in ((PLAIN, True), (MSGPACK, True), (SECRET, False), (BINARY, False)):
        job_type = JobType("gossip", input=Gossip, output=None, format=format)
        assert (WORD in str(refusal(job_type, {"secret": WORD}))) is tells


# --- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PayloadFormat(object()), "got object"),  # type: ignore[arg-type]
        (lambda: PayloadFormat(codecs=[MsgpackSerde()]), "codecs must be .* got MsgpackSerde"),  # type: ignore[list-item]
        (lambda: PayloadFormat(also_reads=[ZlibCodec()]), "also_reads must .* got ZlibCodec"),  # type: ignore[list-item]
        (lambda: PayloadFormat(codecs=[ZlibCodec()], also_reads=[ZIPPED]), "must differ in their steps"),
        (lambda: ZlibCodec(level=0), "between 1 and 9"),
    ],
)
def test_formats_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("name", ["", "UPPER", "with space", "with:colon", "json", None, "x" * 41])
def test_names_of_serdes(name: Any) -> None:
    class Named(MsgpackSerde):
        pass

    Named.name = name
    with pytest.raises(ConfigurationError, match="name"):
        PayloadFormat(Named())


def test_a_codec_without_a_name() -> None:
    class Nameless(Codec):
        def encode(self, data: bytes, place: Place) -> bytes:
            return data

        def decode(self, data: bytes, place: Place) -> bytes:
            return data

    with pytest.raises(ConfigurationError, match="name of Nameless"):
        PayloadFormat(codecs=[Nameless()])


def test_a_job_type_takes_only_formats() -> None:
    with pytest.raises(DefinitionError, match="must be a PayloadFormat, got ZlibCodec"):
        JobType("x", input=int, output=int, format=ZlibCodec())  # type: ignore[call-overload]


def test_required_codecs() -> None:
    open_one = JobType("open", input=int, output=int, format=ZIPPED)
    with pytest.raises(DefinitionError, match="'open' must have the required codec aes-gcm"):
        JobTypes(job_types, open_one, required_codecs=[encryption])
    with pytest.raises(DefinitionError, match="'plain' must have the required codec aes-gcm"):
        JobTypes(JobType("plain", input=int, output=int), required_codecs=[encryption])
    assert len(JobTypes(job_types, open_one)) == len(job_types) + 1


def test_a_job_type_takes_its_format_along() -> None:
    again: JobType[Patient, Patient] = pickle.loads(pickle.dumps(heal))
    assert [codec.name for codec in again.format.codecs] == ["aes-gcm"]
    patient = Patient(name="a", scan=b"\xff\x00")
    assert again.decode_input(heal.encode_input(patient)) == patient
    assert heal.decode_input(again.encode_input(patient)) == patient


def test_shown_is_what_can_be_read() -> None:
    patient = Patient(name="a", scan=b"\xff")
    stored = json.loads(heal.encode_input(patient))
    shown = heal.shown("input", stored)
    assert (shown["name"], shown["scan"]) == ("a", b"\xff")
    assert heal.shown("output", stored) == stored  # It was encrypted as an input.
    assert heal.shown("input", {"name": "plain"}) == {"name": "plain"}
    assert text_of(PLAIN).shown("input", stored) == stored
    assert text_of(SECRET).shown("input", json.loads(text_of(SECRET).encode_input("b"))) == "b"


def test_abstract_classes_say_what_is_missing() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Serde()  # type: ignore[abstract]
