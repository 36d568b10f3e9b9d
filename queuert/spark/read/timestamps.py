"""Converts times from the eight bytes that the server stores to an Arrow column, without a loop over rows.

Postgres writes the text of a time three times as slowly as these bytes, and the four times of a job are most of the
server's cost of reading whole jobs.
"""

from __future__ import annotations

import sys
from array import array
from binascii import unhexlify
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from queuert.spark.arrow import pc, text_bytes

MOMENT = pa.timestamp("us", tz="UTC")

_ZERO = datetime(1970, 1, 1, tzinfo=UTC)
_SERVERS_ZERO = datetime(2000, 1, 1, tzinfo=UTC)


def _microseconds(moment: datetime, since: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - since) // timedelta(microseconds=1)


def _integers(*numbers: int) -> Any:
    """Return an Arrow array of numbers. Arrow's own conversion from Python imports pandas if it is installed, which
    takes a second."""
    return _as_array(array("q", numbers))


def _as_array(numbers: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


_FIRST, _LAST = (_microseconds(moment, _SERVERS_ZERO) for moment in (datetime.min, datetime.max))
_LEAST, _MOST, _BETWEEN_ZEROS, _ONE = _integers(_FIRST, _LAST, _microseconds(_SERVERS_ZERO, _ZERO), 1)
_NOTHING = pa.nulls(1, pa.int64())[0]


def moments(texts: Any) -> Any:
    r"""Convert texts such as ``\x0002fb1b4d2a6c40`` to times; null for times that Python and Spark do not support.

    These are ``infinity``, and the years before 1 and after 9999.
    """
    known = _within_calendars(_numbers(text_bytes(texts)))
    counted = pc.add(known, _BETWEEN_ZEROS).view(MOMENT)
    return counted if not texts.null_count else _spread(counted, texts.is_valid())


def _numbers(texts: bytes) -> Any:
    numbers = array("q", unhexlify(texts.translate(None, b"\\x")))
    if sys.byteorder == "little":
        numbers.byteswap()
    return _as_array(numbers)


def _within_calendars(numbers: Any) -> Any:
    ends = pc.min_max(numbers).as_py()
    if not len(numbers) or (ends["min"] >= _FIRST and ends["max"] <= _LAST):
        return numbers
    inside = pc.and_(pc.greater_equal(numbers, _LEAST), pc.less_equal(numbers, _MOST))
    return pc.if_else(inside, numbers, _NOTHING)


def _spread(values: Any, present: Any) -> Any:
    """Put the values where ``present`` is true, and null elsewhere."""
    if not len(values):
        return pa.nulls(len(present), values.type)
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), _ONE)
    return values.take(pc.if_else(present, places, _NOTHING))
