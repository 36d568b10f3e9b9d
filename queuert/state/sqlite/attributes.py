"""Attribute index of chains, and the deletion of chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from queuert.attributes import Attributes, attributes_of, pairs_of
from queuert.state.sqlite.connection import fetch_one, run

Connection = sqlite3.Connection

_ENOUGH = 1_000


def add_entries(connection: Connection, chain_id: str, created_at: int, attributes: Attributes | None) -> None:
    """Add the attributes of a new chain to the index."""
    for name, value in pairs_of(attributes or {}):
        run(connection, "insert_attribute", name=name, value=value, created_at=created_at, chain_id=chain_id)


def delete_chain_rows(connection: Connection, chain_id: str) -> None:
    """Delete the jobs of a chain with their steps, and its attributes from the index. No job may have it as
    a blocker any more."""
    found = fetch_one(connection, "chain_attributes", id=chain_id)
    if found is not None:
        for name, value in pairs_of(attributes_of(found[1])):
            run(connection, "delete_attribute", name=name, value=value, created_at=found[0], chain_id=chain_id)
    run(connection, "delete_steps", id=chain_id)
    run(connection, "delete_jobs", id=chain_id)


def rarest_first(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the distinct pairs, the rarest first: the chains of the first pair are read, and checked for the
    others."""
    params = dict.fromkeys(pairs)
    if len(params) < 2:
        return list(params)

    def number(pair: tuple[str, str]) -> int:
        [(count,)] = run(connection, "count_attribute", name=pair[0], value=pair[1], limit=_ENOUGH)
        return int(count)

    return sorted(params, key=number)
