"""Rows that cannot be read as values: times that Python does not know, as a rule, written by hand.

The rows beside one are read all the same. What it says as far as it can be read is enough to end its attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.adapt import Transformer
from psycopg.pq import Format

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection, abc
    from psycopg.pq.abc import PGresult

UNREADABLE = (DataError, ValueError, OverflowError)
"""What reading a value raises, if it can be read by nobody here."""


class UnreadableRow(tuple[Any, ...]):
    """A row with None for each value that cannot be read."""

    fault: str = ""
    """Which columns these are, and why."""


def rows_one_by_one(connection: AsyncConnection[Any] | Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result that cannot be read at once."""
    transformer: abc.Transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return [_row(transformer, result, at) for at in range(result.ntuples)]


def _row(transformer: abc.Transformer, result: PGresult, at: int) -> tuple[Any, ...]:
    try:
        [row] = transformer.load_rows(at, at + 1, tuple)
    except UNREADABLE:
        values, faults = [], []
        for column in range(result.nfields):
            value, fault = _value(transformer, result, at, column)
            values.append(value)
            faults += fault
        unreadable = UnreadableRow(values)
        unreadable.fault = ", ".join(faults)
        return unreadable
    return row


def _value(transformer: abc.Transformer, result: PGresult, at: int, column: int) -> tuple[Any, list[str]]:
    stored = result.get_value(at, column)
    if stored is None:
        return None, []
    try:
        return transformer.get_loader(result.ftype(column), Format(result.fformat(column))).load(stored), []
    except UNREADABLE as error:
        return None, [f"{(result.fname(column) or b'?').decode()}: {error}"]
