"""What goes wrong with a history. Wrong options are :class:`~queuert.spark.errors.SparkOptionError`."""

from __future__ import annotations

from queuert.errors import QueuertError


class HistoryOutputError(QueuertError, ValueError):
    """The output is not one for this history: it belongs to another database, or is damaged. Nothing was written.

    Give each database, and each schema, a directory of its own; after a restore into another cluster begin a new one,
    since transactions are counted anew there.
    """


class HistoryBusyError(QueuertError):
    """Another run writes to the same output at the moment. Let it end, then run again."""


class ArchiveCountError(QueuertError):
    """What was read back from the archive is not what was written to it. Nothing was deleted from the database.

    Run again: the run begins anew with what it writes. If it happens twice, look at the storage.
    """
