"""Database roles with the least privileges that each needs: ``roles.sql``, with the names of a schema filled in.

``docs/design/security.md`` says what each role may do, and why the owner keeps the other privileges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

import psycopg

from queuert.errors import ConfigurationError, MigrationError
from queuert.migrations import checked_dsn
from queuert.rights import Role
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name
from queuert.state.postgres.errors import mapped_errors

__all__ = ["Role", "grant_roles", "role_names", "roles_sql"]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def role_names(schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None) -> dict[Role, str]:
    """Return the names of the database roles: by default the name of the schema, ``_`` and the role's.

    Raises:
        ConfigurationError: a name is not a lower-case identifier of at most 63 characters, or two roles have the same
            name.
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
    """Return the SQL that creates missing roles and grants each what it needs, for review or for psql.

    Raises:
        ConfigurationError: the name of the schema or of a role is not allowed.

    Example:
        >>> "CREATE ROLE" in roles_sql("queuert")
        True
    """
    chosen = role_names(schema, names)
    filled = {
        "schema": f'"{schema}"',
        "names": ", ".join(f"'{name}'" for name in chosen.values()),
        "everybody": ", ".join(f'"{name}"' for name in chosen.values()),
        "readers": ", ".join(f'"{name}"' for role, name in chosen.items() if role is not Role.PRODUCER),
        **{role.value: f'"{name}"' for role, name in chosen.items()},
    }
    text = (files("queuert.state.postgres") / "roles.sql").read_text(encoding="utf-8")
    return re.sub(r"\{(?P<name>\w+)\}", lambda found: filled[found["name"]], text)


def grant_roles(dsn: str, *, schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None) -> None:
    """Run :func:`roles_sql` in one transaction. It is idempotent; run it again after each migration.

    Args:
        dsn: libpq connection string or URI of the schema's owner. To create roles, the owner needs CREATEROLE.
        schema: the schema of the tables, which must be at the newest revision.
        names: names of roles that differ from :func:`role_names`.

    Raises:
        ConfigurationError: a name is not allowed.
        MigrationError: this login is not the owner, or may not create roles. Nothing was changed.
        SchemaMissingError: the tables do not exist, or are not at the newest revision.
        StateUnavailableError: the database cannot be reached.
    """
    script = roles_sql(schema, names)
    checked_dsn(dsn)
    with (
        mapped_errors(schema),
        psycopg.connect(dsn, connect_timeout=10, application_name="queuert migrate") as connection,
    ):
        try:
            connection.execute(script.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            reason = error.diag.message_primary or "permission denied"
            raise MigrationError(f"the roles were not granted: {reason}; run it as the schema's owner") from error
