"""Rows that are no valid jobs, set aside as Parquet files: the columns of the DataFrame, and why.

A task writes a file of its own, under a name of this write and this attempt. Whoever commits removes the files of
attempts that did not win, so that what stays is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

REASON = "rejected_because"


def prefix_of(write_id: str) -> str:
    """How the names of the files of a write begin."""
    return f"rejects-{hashlib.sha256(write_id.encode()).hexdigest()[:16]}-"


class RejectFile:
    """The rejected rows of one task: a file that is made when the first row comes."""

    def __init__(self, path: str, write_id: str, tag: str) -> None:
        self._path = path
        self._name = f"{prefix_of(write_id)}{tag}.parquet"
        self._writer: Any = None

    @property
    def name(self) -> str | None:
        """The file's name, if there is one."""
        return None if self._writer is None else self._name

    def add(self, batch: Any, bad: dict[int, str]) -> None:
        """Write rows of a record batch, by their numbers, with the reasons."""
        rows = sorted(bad)
        taken = pa.Table.from_batches([batch]).take(pa.array(rows, pa.int32()))
        table = taken.append_column(REASON, pa.array([bad[row] for row in rows], pa.string()))
        if self._writer is None:
            files, folder = _files(self._path)
            files.create_dir(folder, recursive=True)
            self._writer = pyarrow.parquet.ParquetWriter(f"{folder}/{self._name}", table.schema, filesystem=files)
        self._writer.write_table(table)

    def close(self) -> None:
        """Finish the file. It is there for good only after this."""
        if self._writer is not None:
            self._writer.close()


def remove_others(path: str, write_id: str, winners: Container[str]) -> None:
    """Remove the files of a write that no winning attempt wrote."""
    files, folder = _files(path)
    prefix = prefix_of(write_id)
    for found in files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)):
        if found.base_name.startswith(prefix) and found.base_name not in winners:
            files.delete_file(found.path)


def _files(path: str) -> tuple[Any, str]:
    files, folder = pyarrow.fs.FileSystem.from_uri(path)
    return files, folder.rstrip("/")
