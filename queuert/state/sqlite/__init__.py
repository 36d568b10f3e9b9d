"""SQLite as the place where jobs live: a file, or memory."""

from queuert.state.sqlite.adapter import SQLiteState

__all__ = ["SQLiteState"]
