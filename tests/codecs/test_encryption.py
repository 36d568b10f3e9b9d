"""Encryption: keys that change, what is refused, and what is never told."""

from __future__ import annotations

import base64
import doctest
import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert import JobType
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat, ZlibCodec, parse_keys
from queuert.codecs import encryption as module
from queuert.errors import ConfigurationError, PayloadDecodeError, PayloadError, QueuertError
from tests.codecs.secret import NEW_KEY, OLD_KEY, WORD, encryption, keys

OTHER_KEY = EncryptionKey(NEW_KEY.id, b"x" * 32)
"""Another key of the same id."""


def letter(*keys: EncryptionKey, name: str = "letter", **more: Any) -> JobType[str, str]:
    return JobType(name, input=str, output=str, format=PayloadFormat(codecs=[EncryptionCodec(keys)], **more))


def unreadable(work: Callable[[str], object], text: str) -> PayloadDecodeError:
    with pytest.raises(PayloadDecodeError) as raised:
        work(text)
    reported = "".join(traceback.format_exception(raised.value))
    assert WORD not in reported
    for key in (NEW_KEY, OLD_KEY, OTHER_KEY):
        assert key.secret.decode() not in reported
        assert base64.b64encode(key.secret).decode() not in reported
    return raised.value


def changed(text: str, **parts: Any) -> str:
    return json.dumps({**json.loads(text), **{f"queuert.{name}": value for name, value in parts.items()}})


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    before, during, after = letter(OLD_KEY), letter(OLD_KEY, NEW_KEY), letter(NEW_KEY, OLD_KEY)
    old = [one.encode_input(WORD) for one in (before, during)]
    new = after.encode_input(WORD)
    assert [json.loads(text)["queuert.codec"][-1] for text in (*old, new)] == [
        "aes-gcm:2030-01", "aes-gcm:2030-01", "aes-gcm:2030-02"
    ]  # fmt: skip
    assert {one.decode_input(text) for one in (during, after) for text in (*old, new)} == {WORD}
    assert before.decode_input(old[1]) == WORD


def test_a_key_that_is_not_here_is_named() -> None:
    error = unreadable(letter(NEW_KEY).decode_input, letter(OLD_KEY).encode_input(WORD))
    assert "aes-gcm:2030-01" in error.reason
    assert "a key that this program does not have; it has 2030-02" in error.reason
    assert (error.job_type, error.field) == ("letter", "input")


def test_another_key_of_the_same_id() -> None:
    error = unreadable(letter(OTHER_KEY).decode_input, letter(NEW_KEY).encode_input(WORD))
    assert "aes-gcm:2030-02: the data was encrypted with another key of this id" in error.reason


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_there_and_back(value: str) -> None:
    one = letter(NEW_KEY)
    text = one.encode_output(value)
    assert one.decode_output(text) == value
    assert text != one.encode_output(value)  # The same value does not look the same.


# --- tampering --------------------------------------------------------------------------------------------------------


@given(st.integers(0), st.integers(1, 255))
def test_any_byte_that_was_changed_is_noticed(place: int, difference: int) -> None:
    text = letter(NEW_KEY).encode_input(WORD)
    data = bytearray(base64.b64decode(json.loads(text)["queuert.payload"]))
    data[place % len(data)] ^= difference
    unreadable(letter(NEW_KEY).decode_input, changed(text, payload=base64.b64encode(data).decode()))


@pytest.mark.parametrize("length", [0, 11, 12, 27, 28, 40])
def test_cut_off(length: int) -> None:
    text = letter(NEW_KEY).encode_input(WORD)
    data = base64.b64decode(json.loads(text)["queuert.payload"])[:length]
    unreadable(letter(NEW_KEY).decode_input, changed(text, payload=base64.b64encode(data).decode()))


def test_a_payload_belongs_to_its_job_type_field_and_steps() -> None:
    one, other = letter(NEW_KEY), letter(NEW_KEY, name="other")
    assert "for another job type" in unreadable(other.decode_input, one.encode_input(WORD)).reason
    assert "for another job type" in unreadable(one.decode_output, one.encode_input(WORD)).reason
    assert "for another job type" in unreadable(one.decode_input, one.encode_output(WORD)).reason
    twice = letter(NEW_KEY, EncryptionKey("twin", NEW_KEY.secret))
    renamed = changed(one.encode_input(WORD), codec=["json", "aes-gcm:twin"])
    assert "aes-gcm:twin" in unreadable(twice.decode_input, renamed).reason
    zipped = PayloadFormat(codecs=[ZlibCodec(), EncryptionCodec([NEW_KEY])])
    either = letter(NEW_KEY, also_reads=[zipped])
    relabelled = changed(one.encode_input(WORD), codec=["json", "zlib", "aes-gcm:2030-02"])
    assert "aes-gcm:2030-02" in unreadable(either.decode_input, relabelled).reason


def test_encryption_cannot_be_taken_off() -> None:
    """The steps of an envelope are those of a format that is known, or it is not read at all."""
    strict = letter(NEW_KEY, also_reads=())
    forged = base64.b64encode(b'"forged"').decode()
    for steps in (["json"], ["json", "zlib"], ["aes-gcm:2030-02"], ["json", "aes-gcm"]):
        unreadable(strict.decode_input, json.dumps({"queuert.codec": steps, "queuert.payload": forged}))
    unreadable(strict.decode_input, '"forged"')


# --- keys are not told ------------------------------------------------------------------------------------------------


def test_no_repr_shows_a_key() -> None:
    codec = EncryptionCodec([NEW_KEY, OLD_KEY])
    shown = [repr(NEW_KEY), repr(codec), repr(PayloadFormat(codecs=[codec])), repr(encryption), repr(letter(NEW_KEY))]
    assert shown[:2] == ["EncryptionKey(id='2030-02')", "EncryptionCodec(2030-02, 2030-01)"]
    assert not any(key.secret.decode()[:5] in text for key in (NEW_KEY, OLD_KEY) for text in shown)


def test_a_function_of_keys_is_called_when_they_are_needed_and_once() -> None:
    calls: list[int] = []

    def fetched() -> Sequence[EncryptionKey]:
        calls.append(1)
        return [NEW_KEY]

    one = JobType("letter", input=str, output=str, format=PayloadFormat(codecs=[EncryptionCodec(fetched)]))
    assert calls == []
    assert one.decode_input(one.encode_input(WORD)) == WORD
    assert calls == [1]


def _breaks() -> Sequence[EncryptionKey]:
    raise KeyError(NEW_KEY.secret.decode())


def _bad_text() -> Sequence[EncryptionKey]:
    return parse_keys(NEW_KEY.secret.decode())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_breaks, "aes-gcm: the function that returns the keys raised KeyError"),
        (
            _bad_text,
            "aes-gcm: encryption key 1 must be its id, a colon and the base64 of 32 bytes, as in 2030-01:MDEy...",
        ),
        (list, "aes-gcm: EncryptionCodec needs at least one key"),
    ],
)
def test_a_function_of_keys_that_fails(function: Any, reason: str) -> None:
    one = JobType("letter", input=str, output=str, format=PayloadFormat(codecs=[EncryptionCodec(function)]))
    with pytest.raises(PayloadError) as raised:
        one.encode_input(WORD)
    assert raised.value.reason == reason
    unreadable(one.decode_input, letter(NEW_KEY).encode_input(WORD))


def test_keys_travel_only_if_they_are_given_themselves() -> None:
    by_name = pickle.dumps(JobType("letter", input=str, output=str, format=PayloadFormat(codecs=[encryption])))
    assert NEW_KEY.secret not in by_name
    assert OLD_KEY.secret not in by_name
    one = letter(NEW_KEY)
    again: JobType[str, str] = pickle.loads(pickle.dumps(one))
    assert again.decode_input(one.encode_input(WORD)) == WORD


# --- keys from text ---------------------------------------------------------------------------------------------------


def test_keys_as_text() -> None:
    text = f" {NEW_KEY.to_text()},\n{OLD_KEY.to_text()} "
    assert parse_keys(text) == [NEW_KEY, OLD_KEY] == keys()
    assert EncryptionKey.generate("a").secret != EncryptionKey.generate("a").secret


@pytest.mark.parametrize("secret", ["", "short", "A" * 44, base64.b64encode(b"s" * 31).decode(), "é" * 44])
@pytest.mark.parametrize("id", ["2030-03:", "", ":", "-x:"])
def test_text_that_is_no_key(id: str, secret: str) -> None:
    with pytest.raises(ConfigurationError, match="encryption key 2 must be") as raised:
        parse_keys(f"{NEW_KEY.to_text()} {id}{secret or '='}")
    assert "short" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EncryptionKey("a", b"s" * 16), "'a' must be 32 bytes"),
        (lambda: EncryptionKey("a", "s" * 32), "'a' must be 32 bytes"),  # type: ignore[arg-type]
        (lambda: EncryptionKey("a:b", b"s" * 32), "must be 1 to 64"),
        (lambda: EncryptionKey("x" * 65, b"s" * 32), "must be 1 to 64"),
        (lambda: EncryptionCodec([]), "needs at least one key"),
        (lambda: EncryptionCodec([NEW_KEY, OTHER_KEY]), "got 2030-02 twice"),
        (lambda: EncryptionCodec([b"s" * 32]), "got bytes"),  # type: ignore[list-item]
    ],
)
def test_keys_that_are_none(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        make()
    assert "ssss" not in str(raised.value)


def test_without_the_package_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from queuert.codecs import EncryptionCodec, EncryptionKey, ZlibCodec\n"
        "ZlibCodec()\n"
        "try: EncryptionCodec([EncryptionKey.generate('a')])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "ConfigurationError EncryptionCodec needs the package cryptography: pip install 'queuert[encryption]'\n"
    )


def test_the_examples_of_docstrings() -> None:
    found = doctest.testmod(module)
    assert found.attempted == 2
    assert found.failed == 0


def test_codec_errors_are_queuerts() -> None:
    with pytest.raises(QueuertError):
        letter(NEW_KEY).decode_input("{}")
