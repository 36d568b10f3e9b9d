"""The Postgres store."""

from queuert.state.postgres.adapter import PostgresState

__all__ = ["PostgresState"]
