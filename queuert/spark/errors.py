"""What goes wrong between Spark and the queue.

An error that the data source raises inside Spark arrives as text in one of Spark's. :func:`found_in` finds it there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from queuert import errors as core
from queuert.errors import QueuertError


class SparkOptionError(QueuertError, ValueError):
    """An option of the data source is unknown, missing or makes no sense; the message names it. Nothing was written."""


class SparkColumnError(QueuertError, ValueError):
    """A column of the DataFrame is unknown, missing or of a type that no job can take; the message names it.

    Nothing was written. Select, rename or cast the columns.
    """


class BadRowsError(QueuertError, ValueError):
    """Rows of the DataFrame are no valid jobs. Nothing was written.

    The message has their number and the first of them: partition, row within it, id if there is one, and what is
    wrong. Mend them, or give the option ``rejects`` a path where they go instead.
    """


class StagingLostError(QueuertError):
    """Rows that were staged are not there any more when they are to be committed; nothing was written.

    The server crashed meanwhile (staging is not logged), or the staging table was swept as one that is left. Write
    again: with the same ``writeId`` nothing can come twice.
    """


class WriteConflictError(QueuertError, ValueError):
    """The ``writeId`` or ``sinkId`` is that of another write. Nothing was written.

    A ``writeId`` belongs to one DataFrame and one job type, a ``sinkId`` to one query and its checkpoint. Choose
    another one.
    """


class FenceLostError(QueuertError):
    """The attempt that the write was to belong to no longer holds its job, so the write was refused: no row is there.

    Let it pass: the job goes on elsewhere, and writes anew.
    """


class WriteTimeoutError(QueuertError, TimeoutError):
    """Chains of a write did not close in the time given: ``open`` of them. They go on: wait again, or look at a worker.

    ``write_id`` names the write, ``timeout`` is in seconds.
    """

    def __init__(self, write_id: str, open: int, timeout: float) -> None:
        super().__init__(f"{open:,} chain(s) of write {write_id!r} still open after {timeout:g} seconds")
        self.write_id = write_id
        self.open = open
        self.timeout = timeout


class SnapshotGoneError(QueuertError):
    """The snapshot of the read is held no more. Read inside the block of :func:`queuert.spark.snapshot`."""


class EventsLostError(QueuertError):
    """Retention took events that were to be read; the message says up to which transaction.

    A batch is read again, of what is left. A stream can go on with what is left by the option ``failOnDataLoss=false``;
    next time keep the log for longer, or let the stream run more often.
    """


class OffsetError(QueuertError, ValueError):
    """A checkpoint is not one of this database's event log. Begin with a new one."""


_OURS = (
    SparkOptionError,
    SparkColumnError,
    BadRowsError,
    StagingLostError,
    WriteConflictError,
    FenceLostError,
    SnapshotGoneError,
    EventsLostError,
    OffsetError,
)
_KNOWN: dict[str, type[QueuertError]] = {kind.__name__: kind for kind in _OURS} | {
    name: kind
    for name, kind in vars(core).items()
    if isinstance(kind, type) and issubclass(kind, QueuertError) and kind is not QueuertError
}
_LINE = re.compile(r"^(?:\w+: )?queuert\.[\w.]+\.(\w+): (.*)$", re.MULTILINE)


def found_in(error: BaseException) -> QueuertError | None:
    """The error of ours that Spark's error tells of, if there is one, with its message in one line."""
    for name, message in reversed(_LINE.findall(str(error))):
        kind = _KNOWN.get(name)
        if kind is not None:
            found = kind.__new__(kind, message)
            found.args = (message,)
            return found
    return None


def shown_offenders(count: int, rows: int, offenders: Sequence[str]) -> str:
    """The message of :class:`BadRowsError`, in one line."""
    more = f"; and {count - len(offenders)} more" if count > len(offenders) else ""
    return f"{count} of {rows} rows are no valid jobs: {'; '.join(offenders)}{more}"
