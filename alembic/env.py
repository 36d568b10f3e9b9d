"""Alembic's entry point, online and offline. ``queuert.migrations`` drives it; see there for locks and connections."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

config = context.config
schema: str = config.attributes.get("schema") or context.get_x_argument(as_dictionary=True).get("schema", "queuert")

# The name was checked by queuert.migrations; quoted all the same, for whoever calls Alembic directly.
quoted = '"' + schema.replace('"', '""') + '"'

settings: dict[str, Any] = {
    "version_table": "alembic_version",
    "version_table_schema": schema,
    "transaction_per_migration": True,
}


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(dialect_name="postgresql", literal_binds=True, **settings)
    context.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
    with context.begin_transaction():
        context.execute(f"SET search_path TO {quoted}")
        context.run_migrations()


def run_online() -> None:
    """Run on connections made by the caller's ``connect``."""
    connect = config.attributes.get("connect")
    url = config.get_main_option("sqlalchemy.url") or "postgresql+psycopg://"
    engine = create_engine(url, poolclass=NullPool, **({"creator": connect} if connect else {}))
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {quoted}"))
        connection.execute(text(f"SET search_path TO {quoted}"))
        connection.commit()
        context.configure(connection=connection, **settings)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
