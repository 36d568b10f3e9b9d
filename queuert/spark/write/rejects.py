"""Rows that are no valid jobs, set aside as Parquet files: the columns of the DataFrame, and why.

Each attempt of a task writes a file of its own, before the commit, so that no row is lost. Its name begins with a
digest of the database, the schema and the write: files of others in the directory are never touched. The commit notes
in the database which files count, and then all others of the write are removed; whoever repeats the write does that
again. An attempt that ends later finds the write committed, or its staging table gone, and removes its file itself.
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
"""How names begin that readers of a directory pass over."""

_SHOWS_UNFINISHED = frozenset({"local", "hdfs"})
"""Storage where a file is seen before it is closed. It can be renamed there; elsewhere that would be a copy."""

_FAULTS = (OSError, pa.ArrowException)

_log = logging.getLogger("queuert.spark")


@dataclass(frozen=True, slots=True)
class Rejects:
    """Where the rejected rows of one write go.

    Attributes:
        path: the directory or its URL.
        write: what tells the write from all others of the schema.
        is_committed: whether the write is committed, by whomever: then an attempt that still runs does not count.
        run: tells the files of this driver from those of others with the same write; empty: only their tags do.
    """

    path: str
    write: tuple[str | int, ...]
    is_committed: Callable[[BulkSession], bool]
    run: str = ""


def check_rejects(path: str, schema: StructType) -> None:
    """Refuse what would fail later, before anything is staged.

    Raises:
        SparkOptionError: there can be no directory of that name, or its storage cannot be reached.
        SparkColumnError: a column has the name of the one that is added.
    """
    taken = [name for name in schema.fieldNames() if name.lower() == REASON]
    if taken:
        raise SparkColumnError(f"column {taken[0]!r} would be there twice in the files of rejects: rename or drop it")
    with _reported(path):
        files, folder = _files(path)
        if not folder:
            raise SparkOptionError("rejects: the location names no directory")
        if files.get_file_info(folder).type == pyarrow.fs.FileType.File:
            raise SparkOptionError("rejects: the location is a file, and no directory")


def prefix_of(session: BulkSession, *write: str | int) -> str:
    """How the names of all files of a write begin."""
    with session.transaction() as connection:
        [place] = fetch(connection, session.sql.bulk_place)
    digest = hashlib.sha256(json.dumps([*place, *write]).encode())
    return f"rejects-{digest.hexdigest()[:32]}-"


class RejectFile:
    """The rejected rows of one attempt of a task: a file that is made when the first row comes."""

    def __init__(self, rejects: Rejects, session: BulkSession, tag: str) -> None:
        self._rejects = rejects
        self._session = session
        self._tag = tag
        self._writer: Any = None
        self._files: Any = None
        self._folder = self._made = ""
        self.name: str | None = None
        """The file's name, if there is one."""

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
        """Let readers see the file, unless the write was committed without it.

        Raises:
            SparkOptionError: the file cannot be written.
        """
        if self._writer is None:
            return
        with _reported(self._rejects.path):
            self._writer.close()
            shown = self._show()
        # Only now: who commits later than this look finds the file.
        if self._rejects.is_committed(self._session):
            self.discard()
        elif not shown:
            raise SparkOptionError(f"rejects: somebody has removed {self._made}, which was being written")

    def _show(self) -> bool:
        """Give the file the name that readers look at; False if it is gone."""
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
    """Remove the files that begin so, but for the winners. What cannot be removed is a warning in the log."""
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
    """Remove files by name. What cannot be removed is a warning in the log."""
    try:
        files, folder = _files(path)
    except _FAULTS as error:
        warn_of_left(_text(error, path))
        return
    for name in names:
        _remove(files, f"{folder}/{name}")


def warn_of_left(reason: object) -> None:
    """Say that files may be left, in a write that is otherwise over."""
    _log.warning("files of rejects that do not count may be left until the write is repeated: %s", reason)


def _remove(files: Any, place: str) -> None:
    try:
        files.delete_file(place)
    except FileNotFoundError:
        return  # somebody else has removed it
    except _FAULTS as error:
        _log.warning("a file of rejects that does not count could not be removed: %s: %s", place, error)


@contextmanager
def _reported(path: str) -> Iterator[None]:
    """What goes wrong with storage, as an error that names the option."""
    try:
        yield
    except _FAULTS as error:
        raise SparkOptionError(f"rejects: the location cannot be used: {_text(error, path)}") from None


def _text(error: Exception, path: str) -> str:
    """The first line of an error, without the location: that may hold a key."""
    lines = str(error).replace(path, "...").splitlines()
    return lines[0] if lines else type(error).__name__


def _files(path: str) -> tuple[Any, str]:
    files, folder = pyarrow.fs.FileSystem.from_uri(path)
    return files, folder.rstrip("/")
