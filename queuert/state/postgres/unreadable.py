"""Rows that cannot be read as values: times that Python does not know, as a rule, written by hand.

The rows beside one are read all the same. What it says as far as it can be read is enough to end its attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.pq import Format

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import Loader
    from psycopg.pq.abc import PGresult

UNREADABLE = (DataError, ValueError, OverflowError)
"""What reading a value raises, if it can be read by nobody here."""


_UNKNOWN_TYPE = 0
"""The type under which psycopg keeps what reads values of types that it does not know."""


class UnreadableRow(tuple[Any, ...]):
    """A row with None for each value that cannot be read."""

    fault: str = ""
    """Which columns these are, and why."""


def rows_one_by_one(connection: AsyncConnection[Any] | Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result that cannot be read at once."""
    loaders = [_loader(connection, result, column) for column in range(result.nfields)]
    return [_row(loaders, result, at) for at in range(result.ntuples)]


def _loader(connection: AsyncConnection[Any] | Connection[Any], result: PGresult, column: int) -> Loader:
    """What psycopg reads the values of a column with; a type that it does not know is read as text."""
    format = Format(result.fformat(column))
    adapters = connection.adapters
    kind = adapters.get_loader(result.ftype(column), format) or adapters.get_loader(_UNKNOWN_TYPE, format)
    assert kind is not None, "psycopg has a loader for types that it does not know"
    return kind(result.ftype(column), connection)


def _row(loaders: Sequence[Loader], result: PGresult, at: int) -> tuple[Any, ...]:
    values, faults = [], []
    for column, loader in enumerate(loaders):
        stored = result.get_value(at, column)
        try:
            values.append(None if stored is None else loader.load(stored))
        except UNREADABLE as error:
            values.append(None)
            faults.append(f"{(result.fname(column) or b'?').decode()}: {error}")
    if not faults:
        return tuple(values)
    unreadable = UnreadableRow(values)
    unreadable.fault = ", ".join(faults)
    return unreadable
