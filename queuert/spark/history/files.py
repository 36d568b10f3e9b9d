"""Small files next to those that Spark writes: on the same storage, with the same settings and credentials."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Protocol

from queuert.spark.errors import HistoryOutputError, SparkOptionError
from queuert.spark.jvm import java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PATTERN = "*?[]{}\\"


class Files(Protocol):
    """A directory. All paths are relative to it."""

    @property
    def root(self) -> str:
        """The whole address of the directory, for Spark."""
        ...

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist.

        Raises:
            HistoryOutputError: it cannot be read.
        """
        ...

    def write(self, path: str, text: str) -> None:
        """Write a file atomically: a reader never sees a part of it. An existing file is removed first."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the entries of a folder, in order; empty if it does not exist."""
        ...

    def remove(self, pattern: str) -> None:
        """Remove files, and folders with all their contents. ``*`` stands for any part of one name."""
        ...


class HadoopFiles:
    """A directory on any storage that the session can write to.

    Args:
        spark: a classic session, since Spark Connect has access to storage only by DataFrames.
        root: a path, or a URL such as ``s3a://bucket/history``.

    Raises:
        SparkOptionError: the session is one of Spark Connect or does not support the storage, or Spark would
            interpret the path as a pattern.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        parts = java_of(spark)
        if parts is None:
            raise SparkOptionError("the session of a history must be a classic one, not one of Spark Connect")
        if not root.strip():
            raise SparkOptionError("output must be a directory, or the URL of one")
        self._java = parts.classes
        try:
            path = parts.classes.org.apache.hadoop.fs.Path(root)
            self._files = path.getFileSystem(parts.context.hadoopConfiguration())
            self._root = str(self._files.makeQualified(path).toString()).rstrip("/")
            name = str(path.toUri().getPath())
        except Exception as error:
            raise SparkOptionError(
                f"output must be a location that Spark can use, got {root!r}: {_reported(error)}"
            ) from error
        check_path(name)

    @property
    def root(self) -> str:
        """The whole address of the directory."""
        return self._root

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
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
        """Write a file atomically. Names that begin with a dot are not read by anything."""
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
        """Return the names of the entries of a folder, in order."""
        whole = self._path(folder)
        if not self._files.exists(whole):
            return []
        names = [str(one.getPath().getName()) for one in self._files.listStatus(whole)]
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, pattern: str) -> None:
        """Remove the files and folders that match the pattern."""
        for one in self._files.globStatus(self._path(pattern)) or ():
            self._files.delete(one.getPath(), True)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)


def check_path(path: str) -> None:
    """Check that Spark, which reads back what it has written, does not interpret the path as a pattern.

    Raises:
        SparkOptionError: the path is a pattern.
    """
    found = [letter for letter in _PATTERN if letter in path]
    if found:
        raise SparkOptionError(
            f"output must be a path without {' '.join(found)}, which Spark takes for a pattern, got {path!r}"
        )


def _reported(error: Exception) -> str:
    return (str(getattr(error, "java_exception", error)).splitlines() or [type(error).__name__])[0]
