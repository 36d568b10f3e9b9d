"""The source files of the running interpreter's standard library, found by Spark or without it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test"})
"""What lies at the top of the library and is not it. Its own tests are more than the rest together."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, as it was when it was read."""

    path: str
    module: str
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
    return _with_spark(root, paths) if spark else _plainly(root, paths)


# --- without Spark ----------------------------------------------------------------------------------------------------


@contextmanager
def _plainly(root: Path, paths: list[str]) -> Iterator[Listing]:
    yield Listing(len(paths), "plain Python", (FoundFile(*read_file(path, root)) for path in paths))


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


def read_file(path: str, root: Path) -> tuple[str, str, int, str]:
    """The path of a file below ``root``, its module's name, its size and digest."""
    content = Path(path).read_bytes()
    return path, module_name(Path(path), root), len(content), hashlib.sha256(content).hexdigest()


# --- with Spark -------------------------------------------------------------------------------------------------------

_SETTINGS = {
    # This Java lives for seconds: compile little, collect simply, and do not cut small things into many parts.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
_PARTITIONS = 4


@contextmanager
def _with_spark(root: Path, paths: list[str]) -> Iterator[Listing]:
    with spark_session() as session:
        # Counted once and iterated once, but read once.
        frame = files_frame(session, root, paths)
        rows = frame.toLocalIterator(prefetchPartitions=True)
        yield Listing(frame.count(), f"Spark {session.version}", (FoundFile(*row) for row in rows))


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session for the block, with the data source ``queuert``."""
    from queuert.spark import local_session

    session = local_session(2, app_name="queuert demo", settings=_SETTINGS)
    try:
        yield session
    finally:
        session.stop()


def files_frame(session: SparkSession, root: Path, paths: list[str]) -> DataFrame:
    """The files that executors read, with the fields of :class:`FoundFile`. Kept, since it is used more than once.

    Spark's own file sources do not see names like ``_abc.py``: to them they are hidden, so that the paths are what is
    distributed.
    """
    read = session.sparkContext.parallelize(paths, _PARTITIONS).map(lambda path: read_file(path, root))
    return session.createDataFrame(read, "path string, module string, size long, digest string").persist()
