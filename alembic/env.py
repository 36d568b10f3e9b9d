"""Alembic's entry point, online and offline. ``queuert.migrations`` drives it; see there for locks and connections."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

config = context.config
schema: str = config.attributes.get("schema") or context.get_x_argument(as_dictionary=True).get("schema", "queuert")

# The name was checked by queuert.migrations; quoted all the same, for whoever calls Alembic directly.
quoted = '"' + schema.replace('"', '""') + '"'

# CREATE SCHEMA IF NOT EXISTS needs the right to create schemas also where there is one.
CREATE_SCHEMA = f"""DO $$
BEGIN
    IF to_regnamespace('{quoted}') IS NULL THEN
        CREATE SCHEMA {quoted};
    END IF;
END $$"""

settings: dict[str, Any] = {
    "version_table": "alembic_version",
    "version_table_schema": schema,
    "transaction_per_migration": True,
}


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(dialect_name="postgresql", literal_binds=True, **settings)
    context.execute(CREATE_SCHEMA)
    with context.begin_transaction():
        context.execute(f"SET search_path TO {quoted}")
        context.run_migrations()


def run_online() -> None:
    """Run on connections made by the caller's ``connect``."""
    connect = config.attributes.get("connect")
    url = config.get_main_option("sqlalchemy.url") or "postgresql+psycopg://"
    engine = create_engine(url, poolclass=NullPool, **({"creator": connect} if connect else {}))
    with engine.connect() as connection:
        connection.exec_driver_sql(CREATE_SCHEMA)
        connection.exec_driver_sql(f"SET search_path TO {quoted}")
        connection.commit()
        context.configure(connection=connection, **settings)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
