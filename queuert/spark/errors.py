"""What goes wrong between Spark and the queue.

An error that the data source raises inside Spark arrives as text in one of Spark's. :func:`found_in` finds it there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from inspect import isfunction

from queuert import errors as core
from queuert.errors import QueuertError
from queuert.event_log import DatabaseMovedError as DatabaseMovedError
from queuert.event_log import EventsLostError as EventsLostError
from queuert.spark.python_worker_errors import reported_error


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
    DatabaseMovedError,
    OffsetError,
)
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_LISTED = rf"(?:{_QUOTED})(?:, (?:{_QUOTED}))*"
_MISSING = re.compile(rf"\w+ (?P<id>{_QUOTED}) does not exist")
_PAYLOAD = re.compile(rf"(?P<field>\w+) of job type (?P<job_type>{_QUOTED}): (?P<path>.*?): (?P<reason>.*)")
_ATTRIBUTES: dict[type[QueuertError], re.Pattern[str]] = {
    core.JobIdConflictError: re.compile(
        rf"(?:jobs with these ids exist already: (?P<ids>{_LISTED}))?"
        rf"(?:(?:; )?these ids are repeated within the write: (?P<repeated>{_LISTED}))?$"
    ),
    core.NotFoundError: _MISSING,
    core.JobNotFoundError: _MISSING,
    core.ChainNotFoundError: _MISSING,
    core.PayloadError: _PAYLOAD,
    core.PayloadDecodeError: _PAYLOAD,
}
"""Where the attributes of an error are in its message."""
_QUOTED_ONES = ("id", "job_type")


def _is_made_of_its_message(kind: type[QueuertError]) -> bool:
    return not isfunction(kind.__init__)


_KNOWN: dict[str, type[QueuertError]] = {kind.__name__: kind for kind in _OURS} | {
    name: kind
    for name, kind in vars(core).items()
    if isinstance(kind, type)
    and issubclass(kind, QueuertError)
    and kind is not QueuertError
    and (_is_made_of_its_message(kind) or kind in _ATTRIBUTES)
}
"""What the data source may raise inside Spark, whole: no attribute of theirs is missing."""


def found_in(error: BaseException) -> QueuertError | None:
    """The error of ours that Spark's error tells of, if there is one, with its message in one line.

    Its attributes are those that the message has: of many ids, for example, the first. What it has not is empty.
    """
    reported = reported_error(error)
    kind = None if reported is None else _KNOWN.get(reported[0])
    if reported is None or kind is None:
        return None
    found = kind.__new__(kind, reported[1])
    found.args = (reported[1],)
    vars(found).update(_attributes(kind, reported[1]))
    return found


def _attributes(kind: type[QueuertError], message: str) -> dict[str, object]:
    pattern = _ATTRIBUTES.get(kind)
    if pattern is None:
        return {}
    match = pattern.match(message)
    reported = dict.fromkeys(pattern.groupindex, "") if match is None else match.groupdict(default="")
    if "ids" not in reported:
        return {name: _unquoted(text) if name in _QUOTED_ONES else text for name, text in reported.items()}
    ids, repeated = (tuple(ast.literal_eval(f"[{reported[name]}]")) for name in ("ids", "repeated"))
    return {"ids": (*ids, *(id for id in repeated if id not in ids)), "repeated": repeated}


def _unquoted(text: str) -> str:
    return str(ast.literal_eval(text)) if text else text


def shown_offenders(count: int, rows: int, offenders: Sequence[str]) -> str:
    """The message of :class:`BadRowsError`, in one line."""
    more = f"; and {count - len(offenders)} more" if count > len(offenders) else ""
    return f"{count} of {rows} rows are no valid jobs: {'; '.join(offenders)}{more}"
