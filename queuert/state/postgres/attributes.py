"""Attributes of chains and the worker registry: statements, parameters and rows, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from queuert.attributes import attributes_of, pairs_of
from queuert.state.paging import ChainFilter
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row

_DIRECTED = re.compile(rb"<=|> \(|\b(?:ASC|DESC)\b|%\((?:low|high)(?=_id\)|\))")
_MIRRORED = {b"<=": b">=", b"> (": b"< (", b"ASC": b"DESC", b"DESC": b"ASC", b"%(low": b"%(high", b"%(high": b"%(low"}


@cache
def with_attribute_index(index: bytes, start: bytes) -> bytes:
    """A statement that starts chains, such as ``start_jobs``, and writes the entries of their attributes."""
    _, _, rest = index.partition(b"entry AS (\n")
    entry, _, _ = rest.partition(b"\n)\nSELECT")
    written, returned, tail = start.rpartition(b"\nSELECT id, type, status, created_at")
    return written + b",\nentry AS (\n" + entry + b"\n)" + returned + tail


@cache
def reverse_order(statement: bytes, oldest_first: bool) -> bytes:
    """``list_chains_by_attributes`` in the order asked for. It is written newest first."""
    return _DIRECTED.sub(lambda found: _MIRRORED[found[0]], statement) if oldest_first else statement


def attribute_rows(rows: Iterable[Row]) -> Parameters:
    """Parameters of ``delete_attributes``, from the rows of ``delete`` and ``prune``."""
    entries = [
        (name, value, row[5], row[0]) for row in rows if row[6] for name, value in pairs_of(attributes_of(row[6]))
    ]
    names, values, started, ids = ([entry[at] for entry in entries] for at in range(4))
    return {"names": names, "values": values, "started": started, "ids": ids}


def params_pairs(filter: ChainFilter) -> Parameters:
    """What ``list_chains_by_attributes`` takes besides the parameters of ``list_chains``."""
    pairs = list(dict.fromkeys(filter.attributes))
    return {"names": [name for name, _ in pairs], "values": [value for _, value in pairs]}
