"""Writes rows that are not valid jobs to Parquet files: the columns of the DataFrame, and the reason.

Each attempt of a task writes a file of its own before the commit, so that no row is lost. The file's name begins with a
digest of the database, the schema and the write, so that other files in the directory are never changed. The commit
records in the database which files count, and then all others of the write are removed; a repetition of the write does
that again. An attempt that ends later finds the write committed, or its staging table missing, and removes its file
itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pyspark.sql.types import StructType

from queuert.spark.errors import SparkColumnError, SparkOptionError
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.sync_statements import fetch

REASON = "rejected_because"

_HIDDEN = "_"
"""The prefix of names that readers of a directory ignore."""

_SHOWS_UNFINISHED = frozenset({"local", "hdfs"})
"""Storage on which a file is visible before it is closed. There it can be renamed; elsewhere that would be a copy."""

_FAULTS = (OSError, pa.ArrowException)

_log = logging.getLogger("queuert.spark")


@dataclass(frozen=True, slots=True)
class Rejects:
    """The destination of the rejected rows of one write.

    Attributes:
        path: the directory or its URL.
        write: identifies the write within the schema.
        is_committed: whether the write is committed; an attempt that still runs then does not count.
        run: identifies the files of this driver among those of the same write; empty if only their tags do.
    """

    path: str
    write: tuple[str | int, ...]
    is_committed: Callable[[BulkSession], bool]
    run: str = ""


def check_rejects(path: str, schema: StructType) -> None:
    """Check the path and the columns before anything is staged.

    Raises:
        SparkOptionError: there can be no directory at the path, or its storage cannot be reached.
        SparkColumnError: a column has the name of the column that is added.
    """
    taken = [name for name in schema.fieldNames() if name.lower() == REASON]
    if taken:
        raise SparkColumnError(
            f"column {taken[0]!r} must not have the name of a column that rejects adds: rename or drop it"
        )
    with _reported(path):
        files, folder = _files(path)
        if not folder:
            raise SparkOptionError("rejects must be a directory or the URL of one")
        if files.get_file_info(folder).type == pyarrow.fs.FileType.File:
            raise SparkOptionError("rejects must be a directory, got the location of a file")


def prefix_of(session: BulkSession, *write: str | int) -> str:
    """Return the prefix of the names of all files of a write."""
    with session.transaction() as connection:
        [place] = fetch(connection, session.sql.bulk_place)
    digest = hashlib.sha256(json.dumps([*place, *write]).encode())
    return f"rejects-{digest.hexdigest()[:32]}-"


class RejectFile:
    """The rejected rows of one attempt of a task: a file that is created with the first row."""

    def __init__(self, rejects: Rejects, session: BulkSession, tag: str) -> None:
        self._rejects = rejects
        self._session = session
        self._tag = tag
        self._writer: Any = None
        self._files: Any = None
        self._folder = self._made = ""
        self.name: str | None = None
        """The name of the file, if there is one."""

    def add(self, batch: Any, bad: dict[int, str]) -> None:
        """Write rows of a record batch, by their numbers, with the reasons.

        Raises:
            SparkOptionError: the file cannot be written.
        """
        rows = sorted(bad)
        taken = pa.Table.from_batches([batch]).take(pa.array(rows, pa.int32()))
        table = taken.append_column(REASON, pa.array([bad[row] for row in rows], pa.string()))
        with _reported(self._rejects.path):
            if self._writer is None:
                self._writer = self._opened(table.schema)
            self._writer.write_table(table)

    def _opened(self, schema: Any) -> Any:
        prefix = prefix_of(self._session, *self._rejects.write)
        self._files, self._folder = _files(self._rejects.path)
        self._files.create_dir(self._folder, recursive=True)
        self.name = f"{prefix}{self._rejects.run}{self._tag}.parquet"
        self._made = f"{_HIDDEN}{self.name}" if self._files.type_name in _SHOWS_UNFINISHED else self.name
        place = f"{self._folder}/{self._made}"
        return pyarrow.parquet.ParquetWriter(place, schema, filesystem=self._files)

    def finish(self) -> None:
        """Make the file visible to readers, unless the write was committed without it.

        Raises:
            SparkOptionError: the file cannot be written.
        """
        if self._writer is None:
            return
        with _reported(self._rejects.path):
            self._writer.close()
            shown = self._show()
        # Checked only now, so that a commit after this check finds the file.
        if self._rejects.is_committed(self._session):
            self.discard()
        elif not shown:
            raise SparkOptionError(f"rejects: {self._made} was removed while it was being written: write again")

    def _show(self) -> bool:
        """Rename the file to its visible name; False if it was removed."""
        if self._made != self.name:
            try:
                self._files.move(f"{self._folder}/{self._made}", f"{self._folder}/{self.name}")
            except FileNotFoundError:
                return False
        return True

    def discard(self) -> None:
        """Remove the file of an attempt that does not count."""
        if self.name is None:
            return
        try:
            if self._writer is not None:
                self._writer.close()
        except (*_FAULTS, ValueError) as error:
            _log.warning("a file of rejects that does not count could not be closed: %s", error)
        for name in {self._made, self.name}:
            _remove(self._files, f"{self._folder}/{name}")
        self.name = None


def remove_others(path: str, prefix: str, winners: Container[str]) -> None:
    """Remove the files with this prefix, except for the winners. Failures are logged as warnings."""
    try:
        files, folder = _files(path)
        found = files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    except _FAULTS as error:
        warn_of_left(_text(error, path))
        return
    for one in found:
        name = one.base_name
        if name.removeprefix(_HIDDEN).startswith(prefix) and name not in winners:
            _remove(files, one.path)


def remove_files(path: str, names: Iterable[str]) -> None:
    """Remove files by name. Failures are logged as warnings."""
    try:
        files, folder = _files(path)
    except _FAULTS as error:
        warn_of_left(_text(error, path))
        return
    for name in names:
        _remove(files, f"{folder}/{name}")


def warn_of_left(reason: object) -> None:
    """Log that files may be left behind by a write that otherwise succeeded."""
    _log.warning("files of rejects that do not count may be left until the write is repeated: %s", reason)


def _remove(files: Any, place: str) -> None:
    try:
        files.delete_file(place)
    except FileNotFoundError:
        return  # another process has removed it
    except _FAULTS as error:
        _log.warning("a file of rejects that does not count could not be removed: %s: %s", place, error)


@contextmanager
def _reported(path: str) -> Iterator[None]:
    """Raise errors of the storage as errors that name the option."""
    try:
        yield
    except _FAULTS as error:
        raise SparkOptionError(f"rejects must be a location that can be written: {_text(error, path)}") from None


def _text(error: Exception, path: str) -> str:
    """Return the first line of an error without the location, which may contain a key."""
    lines = str(error).replace(path, "...").splitlines()
    return lines[0] if lines else type(error).__name__


def _files(path: str) -> tuple[Any, str]:
    files, folder = pyarrow.fs.FileSystem.from_uri(path)
    return files, folder.rstrip("/")
