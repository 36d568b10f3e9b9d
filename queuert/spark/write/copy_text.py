"""Converts Arrow columns to the text format of Postgres' COPY, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from queuert.ids import ID_LENGTH, joined_ids
from queuert.spark.arrow import holds_any, pc

_SPECIAL = b"\\\n\r\t"
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_NULL = "\\N"


def copy_text(columns: Sequence[Any]) -> memoryview:
    """Return the rows of these columns as COPY text: tabs between fields, a newline after each row, ``\\N`` for
    null."""
    texts = [pc.fill_null(_column_text(column), _NULL) for column in columns]
    ended = pc.binary_join_element_wise(texts[-1], "\n", "")
    rows = pc.binary_join_element_wise(*texts[:-1], ended, "\t") if len(texts) > 1 else ended
    # A column of strings is stored as one text and the offsets into it.
    offsets, data = rows.buffers()[1:]
    view = memoryview(offsets).cast("i")
    return memoryview(data)[view[rows.offset] : view[rows.offset + len(rows)]]


def _column_text(array: Any) -> Any:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return escaped(pc.cast(array, pa.string()))
    if pa.types.is_timestamp(kind):
        moments = pc.cast(array, pa.timestamp("us", "UTC"))
        return pc.binary_join_element_wise(pc.strftime(moments, "%Y-%m-%d %H:%M:%S"), "+00", "")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return escaped(_array_text(array))
    return pc.cast(array, pa.string())


def escaped(array: Any) -> Any:
    """Escape the characters that have a meaning for COPY."""
    if holds_any(array, _SPECIAL):
        for plain, written in _ESCAPES:
            array = pc.replace_substring(array, plain, written)
    return array


def _array_text(array: Any) -> Any:
    """Return lists of strings as Postgres writes arrays, each element in quotes."""
    values = pc.cast(array.values, pa.string())
    for special in ("\\", '"'):
        values = pc.replace_substring(values, special, "\\" + special)
    quoted = pc.fill_null(pc.binary_join_element_wise('"', values, '"', ""), "NULL")
    offsets = pc.cast(array.offsets, pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, quoted), ",")
    return pc.if_else(pc.is_valid(array), pc.binary_join_element_wise("{", joined, "}", ""), None)


def new_ids(count: int) -> Any:
    """Return new ids, as :func:`queuert.ids.new_ids` makes them, without a Python object for each."""
    buffers = [None, pa.py_buffer(bytes(joined_ids(count)))]
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_LENGTH), count, buffers)
    return array.cast(pa.binary()).cast(pa.string())
