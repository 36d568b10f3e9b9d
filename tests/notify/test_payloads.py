"""The text of notifications: whatever the keys, they arrive; whatever arrives, it does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert.notify.encoding import MARK, MAX_BYTES, MAX_TEXTS, WILDCARD, decode, encode

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def decoded(texts: list[str]) -> frozenset[str] | None:
    keys: frozenset[str] = frozenset()
    for text in texts:
        some = decode(text)
        if some is None:
            return None
        keys |= some
    return keys


@given(st.frozensets(ANY_TEXT, min_size=1))
def test_any_keys_come_back(keys: frozenset[str]) -> None:
    assert decoded(encode(keys)) == keys


@pytest.mark.parametrize("key", ["", MARK, f"{MARK}[]", f'{MARK}["other"]', "\0", "é", "\ud800", '["a"]'])
def test_a_single_strange_key_comes_back(key: str) -> None:
    (text,) = encode(frozenset({key}))
    assert decode(text) == frozenset({key})


@given(st.frozensets(ANY_TEXT))
def test_texts_are_what_postgres_takes_in_any_encoding(keys: frozenset[str]) -> None:
    for text in encode(keys):
        assert text.isascii()
        assert "\0" not in text
        assert 0 < len(text) <= MAX_BYTES


@given(ANY_TEXT)
def test_any_text_is_read(text: str) -> None:
    assert decode(text) in (None, frozenset({text}))


@given(ANY_TEXT)
def test_anything_after_the_mark_is_read(text: str) -> None:
    keys = decode(MARK + text)
    assert keys is None or all(isinstance(key, str) for key in keys)


@pytest.mark.parametrize(
    "text",
    ["", MARK, MARK + "[]", MARK + "[1]", MARK + '["a", null]', MARK + '{"a": 1}', MARK + '"a"', MARK + '["a"'],
)
def test_what_only_pretends_is_a_wildcard(text: str) -> None:
    assert decode(text) is None


@pytest.mark.parametrize("text", [MARK + "[" * 7_900, MARK + "9" * 7_900, MARK + '[{"a":' * 1_000])
def test_hostile_json_is_a_wildcard(text: str) -> None:
    assert decode(text) is None


def test_a_plain_key_travels_as_it_is() -> None:
    assert encode(frozenset({"resize image"})) == ["resize image"]
    assert decode("resize image") == frozenset({"resize image"})


def test_keys_are_packed_tightly() -> None:
    keys = frozenset(f"00000000-0000-7000-8000-{number:012}" for number in range(1_000))
    texts = encode(keys)
    assert decoded(texts) == keys
    assert len(texts) == 6
    assert all(len(text) > MAX_BYTES - 40 for text in texts[:-1])


def test_a_key_that_is_too_long_is_a_wildcard() -> None:
    assert encode(frozenset({"x" * (MAX_BYTES + 1)})) == [WILDCARD]
    assert encode(frozenset({"short", "x" * MAX_BYTES})) == [WILDCARD]
    assert encode(frozenset({"x" * MAX_BYTES})) == ["x" * MAX_BYTES]


def test_too_many_texts_are_a_wildcard() -> None:
    keys = [f"{number:05}" + "x" * 7_000 for number in range(MAX_TEXTS + 1)]
    assert len(encode(frozenset(keys[:MAX_TEXTS]))) == MAX_TEXTS
    assert encode(frozenset(keys)) == [WILDCARD]


def test_a_wildcard_is_one() -> None:
    assert encode(None) == [WILDCARD]
    assert decode(WILDCARD) is None
