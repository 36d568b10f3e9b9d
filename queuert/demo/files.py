"""The source files of the running interpreter's standard library, found by Spark or without it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test"})
"""What lies at the top of the library and is not it. Its own tests are more than the rest together."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, as it was when it was read."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The files: how many, by what means, and one after the other."""

    total: int
    reader: str
    files: Iterator[FoundFile]


def library() -> Path:
    """Where the standard library is."""
    return Path(sysconfig.get_path("stdlib"))


def module_name(path: Path, root: Path) -> str:
    """The name under which the file is imported: ``json.decoder``, ``json``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def list_files(root: Path, *, limit: int | None, spark: bool) -> AbstractContextManager[Listing]:
    """The files below ``root``, in the order of their paths; a listing of Spark's lasts as long as its session."""
    paths = find_paths(root, limit)
    return _with_spark(paths) if spark else _plainly(paths)


# --- without Spark ----------------------------------------------------------------------------------------------------


@contextmanager
def _plainly(paths: list[str]) -> Iterator[Listing]:
    yield Listing(len(paths), "plain Python", (FoundFile(*read_file(path)) for path in paths))


def find_paths(root: Path, limit: int | None) -> list[str]:
    """The paths of the files, sorted."""
    tops = sorted(path for path in root.iterdir() if path.name not in LEFT_OUT)
    return sorted(str(path) for top in tops for path in _below(top))[:limit]


def _below(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield from [top] if top.suffix == ".py" else []
        return
    for directory, _, names in os.walk(top):
        yield from (Path(directory, name) for name in names if name.endswith(".py"))


def read_file(path: str) -> tuple[str, int, str]:
    """The path, size and digest of a file."""
    content = Path(path).read_bytes()
    return path, len(content), hashlib.sha256(content).hexdigest()


# --- with Spark -------------------------------------------------------------------------------------------------------

_CONFIGURATION: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # This Java lives for seconds: compile little, collect simply.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_PARTITIONS = 4


@contextmanager
def _with_spark(paths: list[str]) -> Iterator[Listing]:
    """The executors read the files. Spark's own file sources do not see names like ``_abc.py``: to them they are
    hidden, so that the paths are what is distributed.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").appName("queuert demo").config(map=_CONFIGURATION).getOrCreate()
    try:
        read = session.sparkContext.parallelize(paths, _PARTITIONS).map(read_file)
        # Counted once and iterated once, but read once.
        frame = session.createDataFrame(read, "path string, size long, digest string").persist()
        rows = frame.toLocalIterator(prefetchPartitions=True)
        yield Listing(
            frame.count(), f"Spark {session.version}", (FoundFile(row.path, row.size, row.digest) for row in rows)
        )
    finally:
        session.stop()
