"""Roles of the database, each with what it needs and no more: ``roles.sql``, with the names of a schema filled in.

``docs/design/security.md`` says what each may do, and why the owner keeps the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files

import psycopg

from queuert.errors import ConfigurationError, MigrationError
from queuert.migrations import DEFAULT_SCHEMA, check_schema_name, checked_dsn
from queuert.state.postgres.errors import mapped_errors

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Role(StrEnum):
    """What somebody who logs in to the database does."""

    WORKER = "worker"
    """Runs jobs."""
    CLIENT = "client"
    """Starts chains and reads."""
    WRITER = "writer"
    """Starts chains from Spark."""
    OPERATOR = "operator"
    """Intervenes: cancels, retries, deletes, pauses."""
    OBSERVER = "observer"
    """Counts and watches, and sees no payload."""


def role_names(schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None) -> dict[Role, str]:
    """What each role is called: the schema's name, ``_`` and the role's, unless another name is given.

    Raises:
        ConfigurationError: a name is no plain lower-case identifier of at most 63 characters, or two roles share one.
    """
    check_schema_name(schema)
    chosen = {role: (names or {}).get(role, f"{schema}_{role}") for role in Role}
    for role, name in chosen.items():
        if not _NAME.fullmatch(name) or name.startswith("pg_") or name == "public":
            raise ConfigurationError(
                f"the name of the role {role} must be at most 63 lower-case letters, digits and _, and must not begin "
                f"with a digit or pg_, got {name!r}"
            )
    if len(set(chosen.values())) < len(chosen):
        raise ConfigurationError(f"roles must have different names, got {sorted(chosen.values())}")
    return chosen


def roles_sql(schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None) -> str:
    """The SQL that makes the roles, where they are missing, and grants each what it needs; for review or for psql.

    Raises:
        ConfigurationError: the schema's name, or that of a role, is not allowed.

    Example:
        >>> "CREATE ROLE" in roles_sql("queuert")
        True
    """
    chosen = role_names(schema, names)
    filled = {
        "schema": f'"{schema}"',
        "names": ", ".join(f"'{name}'" for name in chosen.values()),
        "everybody": ", ".join(f'"{name}"' for name in chosen.values()),
        **{role.value: f'"{name}"' for role, name in chosen.items()},
    }
    text = (files("queuert.state.postgres") / "roles.sql").read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda found: filled[found[1]], text)


def grant_roles(dsn: str, *, schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None) -> None:
    """Run :func:`roles_sql` in one transaction. Running it again changes nothing; do so after each migration.

    Args:
        dsn: libpq connection string or URI of the schema's owner. To make roles that are missing it needs CREATEROLE.
        schema: whose tables are meant; they must be there, at the newest revision.
        names: what the roles are called, where not as :func:`role_names` says.

    Raises:
        ConfigurationError: a name is not allowed.
        MigrationError: this login is not the owner, or may not create roles. Nothing was changed.
        SchemaMissingError: the tables are not there, or not at the newest revision.
        StateUnavailableError: the database cannot be reached.
    """
    script = roles_sql(schema, names)
    checked_dsn(dsn)
    with mapped_errors(), psycopg.connect(dsn, connect_timeout=10, application_name="queuert migrate") as connection:
        try:
            connection.execute(script.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            reason = error.diag.message_primary or "permission denied"
            raise MigrationError(f"the roles were not granted: {reason}; run it as the schema's owner") from error
