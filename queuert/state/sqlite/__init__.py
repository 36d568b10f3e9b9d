"""The SQLite store: jobs in a file, or in memory."""

from queuert.state.sqlite.adapter import SQLiteState

__all__ = ["SQLiteState"]
