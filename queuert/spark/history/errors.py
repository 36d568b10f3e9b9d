"""Errors of a history. Errors of options are :class:`~queuert.spark.errors.SparkOptionError`."""

from __future__ import annotations

from queuert.errors import QueuertError


class HistoryOutputError(QueuertError, ValueError):
    """The output does not belong to this history: it is of another database, or damaged. Nothing was written.

    Use a directory of its own for each database and schema. After a restore into another cluster begin a new one, since
    another cluster assigns its transaction numbers anew.
    """


class HistoryBusyError(QueuertError):
    """Another run is writing to the same output. Wait until it has ended, then run again."""


class ArchiveCountError(QueuertError):
    """The rows that were read back from the archive are not those that were written. Nothing was deleted from the
    database.

    Run again: the run first repeats its write. If it happens twice, check the storage.
    """
