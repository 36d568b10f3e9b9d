"""Reading Postgres's plans: how many rows of a table a statement touched, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

_PARAMETER = re.compile(rb"%\((\w+)\)s")

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """A plan that was executed: EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)."""

    root: Node

    def nodes(self) -> Iterator[Node]:
        """All nodes that ran."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            if node["Actual Loops"]:
                yield node

    def rows_of(self, table: str) -> float:
        """Rows of the table that were read, those thrown away among them."""
        scans = [node for node in self.nodes() if node["Node Type"] != "ModifyTable"]
        return sum(_read(node) for node in scans if node.get("Relation Name") == table)

    def buffers(self) -> int:
        """Pages of 8 kB that were looked at, each time."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    def indexes(self) -> set[str]:
        """The indexes that were used."""
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    def scanned(self) -> set[str]:
        """The tables that were read from end to end."""
        return {node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan"}

    def blocks(self) -> int:
        """Pages that were looked at, found in memory or read; 0 where the server does not tell."""
        return int(self.root.get("Shared Hit Blocks", 0) + self.root.get("Shared Read Blocks", 0))

    def sorted_rows(self) -> float:
        """The most rows that any one sort took in, all its runs together."""
        sorts = [node for node in self.nodes() if "Sort" in node["Node Type"]]
        # Not what a join below it has compared and left out.
        taken = [float(child["Actual Rows"] * child["Actual Loops"]) for node in sorts for child in node["Plans"]]
        return max(taken, default=0)


def _read(node: Node) -> float:
    thrown_away = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
    once = node["Actual Rows"] + sum(node.get(name, 0) for name in thrown_away)
    return float(once * node["Actual Loops"])


def explain(connection: psycopg.Connection[Any], statement: bytes, values: Mapping[str, Any], mode: str) -> Plan:
    """Run a prepared statement with ``plan_cache_mode`` set to ``mode``, roll it back, and return its plan."""
    names: list[bytes] = []
    for name in _PARAMETER.findall(statement):
        if name not in names:
            names.append(name)
    numbered = _PARAMETER.sub(lambda found: b"$%d" % (names.index(found[1]) + 1), statement).replace(b"%%", b"%")
    arguments = sql.SQL(", ").join(sql.Literal(values[name.decode()]) for name in names)
    with connection.transaction(force_rollback=True):
        connection.execute("SELECT set_config('plan_cache_mode', %s, true)", [mode])
        connection.execute(b"PREPARE explained AS " + numbered)
        try:
            given = sql.SQL(" ({})").format(arguments) if names else sql.SQL("")
            call = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained{}").format(given)
            row = connection.execute(call).fetchone()
        finally:
            connection.execute("DEALLOCATE explained")
    assert row is not None
    return Plan(row[0][0]["Plan"])


@contextmanager
def without_indexes(connection: psycopg.Connection[Any], *tables: str) -> Iterator[None]:
    """Drop the indexes of tables that are about to be filled, and build them when they are: in a third of the time."""
    found = connection.execute(
        """
        SELECT index.oid::regclass::text, pg_get_indexdef(index.oid) FROM pg_index
        JOIN pg_class AS index ON index.oid = indexrelid
        WHERE indrelid = ANY (%s::regclass[]) AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = index.oid)
        """,
        [list(tables)],
    ).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}".encode())
    yield
    connection.execute("SET maintenance_work_mem = '256MB'")
    for _, definition in found:
        connection.execute(definition.encode())
    connection.execute("RESET maintenance_work_mem")
