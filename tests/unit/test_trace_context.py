"""Trace contexts as they are stored: bounded, and read without trust."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert.trace_context import MAX_BYTES, decoded_context, encoded_context

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_is_stored_is_read_back() -> None:
    carrier = {"traceparent": TRACEPARENT, "tracestate": 'a=1,b="\\"', "baggage": "tenant=7", "sentry-trace": "x-y-1"}
    text = encoded_context(carrier)
    assert text is not None
    assert dict(decoded_context(text)) == carrier


def test_nothing_is_stored_of_nothing() -> None:
    assert encoded_context({}) is None
    assert dict(decoded_context(None)) == {}


def test_one_traceparent() -> None:
    assert encoded_context({"traceparent": TRACEPARENT}) == json.dumps({"traceparent": TRACEPARENT}).replace(" ", "")
    assert dict(decoded_context(TRACEPARENT)) == {"traceparent": TRACEPARENT}


def test_baggage_is_left_out_first() -> None:
    carrier = {"baggage": "b" * MAX_BYTES, "x": "1", "tracestate": "t" * 512, "traceparent": TRACEPARENT}
    assert set(decoded_context(encoded_context(carrier))) == {"traceparent", "tracestate", "x"}


def test_an_entry_that_does_not_fit_does_not_keep_out_those_that_do() -> None:
    carrier = {"traceparent": TRACEPARENT, "a": "x" * MAX_BYTES, "b": "short", "baggage": "k=v"}
    assert set(decoded_context(encoded_context(carrier))) == {"traceparent", "b", "baggage"}


@pytest.mark.parametrize("value", ["é", "a\nb", "", "\x00"])
def test_what_is_no_header_is_left_out(value: str) -> None:
    assert encoded_context({"traceparent": TRACEPARENT, "a": value}) == encoded_context({"traceparent": TRACEPARENT})


@given(st.dictionaries(st.text(max_size=70), st.text(max_size=MAX_BYTES), max_size=30))
def test_it_is_always_bounded_and_readable(carrier: dict[str, str]) -> None:
    text = encoded_context(carrier)
    if text is not None:
        assert len(text.encode()) <= MAX_BYTES
        assert decoded_context(text).items() <= carrier.items()
        assert decoded_context(text)


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=9).map(json.dumps))
def test_anything_can_be_read(text: str) -> None:
    assert all(isinstance(value, str) for value in decoded_context(text).values())
