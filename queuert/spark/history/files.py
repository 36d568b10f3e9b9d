"""Small files beside what Spark writes: on the same storage, by the same settings and credentials."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Protocol

from queuert.spark.errors import SparkOptionError
from queuert.spark.history.errors import HistoryOutputError
from queuert.spark.jvm import java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PATTERN = "*?[]{}\\"


class Files(Protocol):
    """A directory. All paths are relative to it."""

    @property
    def root(self) -> str:
        """Its whole address, for Spark."""
        ...

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none.

        Raises:
            HistoryOutputError: it cannot be read.
        """
        ...

    def write(self, path: str, text: str) -> None:
        """Write a file in whole: who reads never sees a part of it. An older one is removed first."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder, in order; none if there is no such folder."""
        ...

    def remove(self, pattern: str) -> None:
        """Remove files, and folders with all that is in them. ``*`` stands for any part of one name."""
        ...


class HadoopFiles:
    """A directory on any storage that the session can write to.

    Args:
        spark: a classic session: one of Spark Connect has no way to storage but DataFrames.
        root: a path, or a URL such as ``s3a://bucket/history``.

    Raises:
        SparkOptionError: the session is one of Spark Connect or knows no such storage, or Spark would take the path
            for a pattern.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        parts = java_of(spark)
        if parts is None:
            raise SparkOptionError("a history needs a classic session, not one of Spark Connect")
        if not root.strip():
            raise SparkOptionError("output: a directory, or the URL of one")
        self._java = parts.classes
        try:
            path = parts.classes.org.apache.hadoop.fs.Path(root)
            self._files = path.getFileSystem(parts.context.hadoopConfiguration())
            self._root = str(self._files.makeQualified(path).toString()).rstrip("/")
            name = str(path.toUri().getPath())
        except Exception as error:
            raise SparkOptionError(f"output: Spark cannot use {root!r}: {_reported(error)}") from error
        check_path(name)

    @property
    def root(self) -> str:
        """Its whole address."""
        return self._root

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        whole = self._path(path)
        if not self._files.exists(whole):
            return None
        stream = self._files.open(whole)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        except Exception as error:
            raise HistoryOutputError(f"{self._root}/{path} cannot be read: {_reported(error)}") from error
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a file in whole. A name that begins with a dot is never one that is looked for."""
        folder, name = posixpath.split(path)
        beside = self._path(posixpath.join(folder, f".{name}.new"))
        stream = self._files.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        whole = self._path(path)
        if self._files.exists(whole):
            self._files.delete(whole, False)
        if not self._files.rename(beside, whole):
            raise OSError(f"cannot rename {beside} to {whole}")

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder, in order."""
        whole = self._path(folder)
        if not self._files.exists(whole):
            return []
        names = [str(one.getPath().getName()) for one in self._files.listStatus(whole)]
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, pattern: str) -> None:
        """Remove what has such a path."""
        for one in self._files.globStatus(self._path(pattern)) or ():
            self._files.delete(one.getPath(), True)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)


def check_path(path: str) -> None:
    """Refuse a path that Spark, which reads back what it has written, would take for a pattern.

    Raises:
        SparkOptionError: it is one.
    """
    found = [letter for letter in _PATTERN if letter in path]
    if found:
        raise SparkOptionError(f"output: {path!r} would be a pattern for Spark: choose one without {' '.join(found)}")


def _reported(error: Exception) -> str:
    return (str(getattr(error, "java_exception", error)).splitlines() or [type(error).__name__])[0]
