"""Errors of reading and writing jobs with Spark, and of a history.

Spark reports an error that the data source raises as text inside one of its own. :func:`found_in` restores it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from inspect import isfunction

from queuert import errors as core
from queuert.errors import DatabaseMovedError as DatabaseMovedError
from queuert.errors import ErrorKind, QueuertError
from queuert.errors import EventsLostError as EventsLostError
from queuert.spark.python_worker_errors import reported_error


class SparkOptionError(QueuertError, ValueError):
    """An option of the data source is unknown, missing or not valid; the message names it. Nothing was written."""

    kind = ErrorKind.USAGE


class SparkColumnError(QueuertError, ValueError):
    """A column of the DataFrame is unknown, missing or of a type that no job can take; the message names it.

    Nothing was written. Select, rename or cast the columns.
    """

    kind = ErrorKind.USAGE


class BadRowsError(QueuertError, ValueError):
    """Rows of the DataFrame are not valid jobs. Nothing was written.

    The message has their number and describes the first of them: partition, row within it, id if there is one, and what
    is wrong. Correct them, or set the option ``rejects`` to a path where they are written instead.
    """

    kind = ErrorKind.USAGE


class StagingLostError(QueuertError):
    """Staged rows were lost before they could be committed. Nothing was written.

    The server crashed (staging tables are unlogged), or the staging table was removed because it had not been used for
    ``stagingTtl``. Write again; with the same ``writeId`` no row is written twice.
    """


class WriteConflictError(QueuertError, ValueError):
    """The ``writeId`` or ``sinkId`` belongs to another write. Nothing was written.

    A ``writeId`` belongs to one DataFrame and one job type, a ``sinkId`` to one query and its checkpoint. Choose
    another one.
    """

    kind = ErrorKind.CONFLICT


class FenceLostError(QueuertError):
    """The attempt of the ``fence`` has lost its lease, so the write was refused. Nothing was written.

    Do not catch it: another attempt runs the job and writes again.
    """


class WriteTimeoutError(QueuertError, TimeoutError):
    """Chains of a write did not close within the timeout. They keep running: wait again, or read a worker's log.

    ``write_id`` names the write, ``open`` is the number of its open chains, ``timeout`` is in seconds.
    """

    kind = ErrorKind.TIMEOUT

    def __init__(self, write_id: str, open: int, timeout: float) -> None:
        super().__init__(f"{open:,} chain(s) of write {write_id!r} are still open after {timeout:g} seconds")
        self.write_id = write_id
        self.open = open
        self.timeout = timeout


class SnapshotGoneError(QueuertError):
    """The snapshot of the read is not open any more. Read inside the block of :func:`queuert.spark.snapshot`."""


class OffsetError(QueuertError, ValueError):
    """A checkpoint does not belong to this database's event log. Start with a new one."""


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
        rf"(?:(?:; )?these ids occur more than once in the write: (?P<repeated>{_LISTED}))?$"
    ),
    core.NotFoundError: _MISSING,
    core.JobNotFoundError: _MISSING,
    core.ChainNotFoundError: _MISSING,
    core.PayloadError: _PAYLOAD,
    core.PayloadDecodeError: _PAYLOAD,
}
"""Patterns that extract the attributes of an error from its message."""
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
"""The errors that can be restored from their message, with all attributes."""


def found_in(error: BaseException) -> QueuertError | None:
    """Return the Queuert error inside Spark's error, with its message in one line; None if there is none.

    Its attributes have what the message contains: of many ids, for example, only the first. Others are empty.
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
        found: dict[str, object] = {
            name: _unquoted(text) if name in _QUOTED_ONES else text for name, text in reported.items()
        }
        # Of what is missing the message names the first.
        return {**found, "ids": (found["id"],) if found["id"] else ()} if pattern is _MISSING else found
    ids, repeated = (tuple(ast.literal_eval(f"[{reported[name]}]")) for name in ("ids", "repeated"))
    return {"ids": (*ids, *(id for id in repeated if id not in ids)), "repeated": repeated}


def _unquoted(text: str) -> str:
    return str(ast.literal_eval(text)) if text else text


def shown_offenders(count: int, rows: int, offenders: Sequence[str]) -> str:
    """Return the message of :class:`BadRowsError`, in one line."""
    more = f"; and {count - len(offenders)} more" if count > len(offenders) else ""
    return f"{count} of {rows} rows are not valid jobs: {'; '.join(offenders)}{more}"
