"""A database whose settings are all unusual, where they change what statements or their answers look like."""

from __future__ import annotations

import psycopg
from psycopg import sql

UNUSUAL = {
    # What is read, and what is written into texts.
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/St_Johns",
    "timezone_abbreviations": "India",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "xmlbinary": "hex",
    # What a statement means.
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "search_path": "nowhere, public",
    "row_security": "off",
    "check_function_bodies": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "default_toast_compression": "pglz",
    # What is said meanwhile.
    "client_min_messages": "debug1",
    # How it is planned.
    "plan_cache_mode": "force_custom_plan",
    "jit_above_cost": "0",
    "from_collapse_limit": "1",
    "join_collapse_limit": "1",
    "geqo_threshold": "2",
    "constraint_exclusion": "on",
    "enable_seqscan": "off",
}
"""Settings that a database or a role may have, and that change what our statements or their answers look like."""


def make_unusual(dsn: str) -> str:
    """Give a database these settings, for connections that come after."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        for name, value in UNUSUAL.items():
            statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
            # A list of names, as one text would be one name.
            names = sql.SQL(", ").join(map(sql.Identifier, value.split(", ")))
            given = names if name in ("DateStyle", "search_path") else sql.Literal(value)
            connection.execute(statement.format(database, sql.Identifier(name), given))
    return dsn
