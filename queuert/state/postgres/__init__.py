"""The Postgres store."""

from queuert.optional_packages import needing_extras

with needing_extras():
    from queuert.state.postgres.adapter import PostgresState

__all__ = ["PostgresState"]
