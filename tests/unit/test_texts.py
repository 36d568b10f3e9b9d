"""Identifiers that every store can hold, and error messages that are made so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert.errors import InvalidIdentifierError
from queuert.texts import check_text, safe_text


def test_an_identifier_fits_an_index_entry_in_bytes_too() -> None:
    with pytest.raises(InvalidIdentifierError, match="got 1004"):
        check_text("😀" * 251, what="id")


@pytest.mark.parametrize("text", ["a", "order 17", "été / «quoted» '\"\n\t", "😀" * 250, "x" * 512, "\x01\ufffe"])
def test_an_identifier_may_hold_any_characters(text: str) -> None:
    assert check_text(text, what="key") == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "key must not be empty"),
        ("a\x00b", "key must not contain a NUL character"),
        ("é\udc00", "key must not contain a lone surrogate"),
        ("x" * 513, "key must have at most 512 characters, got 513"),
        (17, "key must be a string, got int"),
        (b"a", "key must be a string, got bytes"),
    ],
)
def test_an_identifier_that_cannot_be_stored_is_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidIdentifierError, match=message):
        check_text(value, what="key")


@given(st.text(), st.integers(0, 200))
def test_safe_text_is_storable_and_short(text: str, most: int) -> None:
    safe = safe_text(text, most)
    assert len(safe) <= most
    assert "\x00" not in safe
    assert safe.encode().decode() == safe
    if len(text) <= most:
        assert len(safe) == len(text)


def test_safe_text_keeps_both_ends_and_says_so() -> None:
    safe = safe_text("Traceback" + "x" * 10_000 + "ValueError: no\x00", 200)
    assert len(safe) == 200
    assert safe.startswith("Traceback")
    assert safe.endswith("ValueError: no\ufffd")
    assert "[10024 characters in all]" in safe
