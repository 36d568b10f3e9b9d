"""Finds dates and timestamps outside of the years 1 to 9999, which Python and most readers of JSON do not support."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from queuert.spark.arrow import pc

_DAYS = (-719_162, 2_932_896)
"""The first and the last supported day, counted from 1970."""
_DAY = 86_400 * 1_000_000
_MICROSECONDS = (_DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1)


def far_dates(column: Any, name: str) -> Iterator[tuple[int, str]]:
    """Yield the rows of a column with such a date or timestamp at any depth, and its path in the column.

    A row may occur more than once. Columns without dates cost nothing, and others no loop over their rows.
    """
    for leaf, parents, place in _leaves(column, None, name):
        far = pc.indices_nonzero(pc.fill_null(_is_far(leaf), False))
        for row in (far if parents is None else parents.take(far)).to_pylist():
            yield row, place


def _is_far(leaf: Any) -> Any:
    if pa.types.is_date(leaf.type):
        numbers, (first, last) = pc.cast(pc.cast(leaf, pa.date32()), pa.int32()), _DAYS
    else:
        numbers, (first, last) = pc.cast(pc.cast(leaf, pa.timestamp("us", "UTC")), pa.int64()), _MICROSECONDS
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))


def _leaves(array: Any, parents: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the dates and timestamps in an array, the row of each (None for its own index), and their path."""
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield array, parents, place
    elif not _has_dates(kind):
        return
    elif pa.types.is_struct(kind):
        # Not the raw fields, which have values also where the struct is null.
        for field, child in zip(kind, array.flatten(), strict=True):
            yield from _leaves(child, parents, f"{place}.{field.name}")
    elif pa.types.is_map(kind):
        entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        lists = pc.cast(array, pa.list_(entries))
        yield from _leaves(lists.flatten().field("value"), _of_rows(lists, parents), f"{place}{{}}")
    else:
        yield from _leaves(array.flatten(), _of_rows(array, parents), f"{place}[]")


def _of_rows(lists: Any, parents: Any) -> Any:
    """Return the row of each entry of some lists."""
    owners = pc.list_parent_indices(lists)
    return owners if parents is None else parents.take(owners)


def _has_dates(kind: Any) -> bool:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return True
    return any(_has_dates(kind.field(place).type) for place in range(kind.num_fields))
