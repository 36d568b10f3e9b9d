"""A server whose disk is full: a small file system of its own, or where none may be mounted, files that cannot grow."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from queuert.embedded import EmbeddedPostgres
from queuert.embedded.workspace import processes_in

_SETTINGS: dict[str, str | int] = {"fsync": "off", "max_wal_size": "64MB", "min_wal_size": "32MB", "autovacuum": "off"}
_SIZE = "200m"
_PIECE = bytes(64 * 1024)


class SmallDisk(ABC):
    """A server, and room that can be taken from it and released."""

    server: EmbeddedPostgres

    @abstractmethod
    def fill(self) -> None:
        """Leave it no room."""

    @abstractmethod
    def free(self) -> None:
        """Give it room again."""


class FileSystem(SmallDisk):
    """A small one, in memory, that a great file fills."""

    def __init__(self, place: Path) -> None:
        self.server = EmbeddedPostgres(place / "data", settings=_SETTINGS)
        self._ballast = place / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(_PIECE)

    def free(self) -> None:
        self._ballast.unlink()


class FilesThatCannotGrow(SmallDisk):
    """A limit on the size of files, for every process of the server: what has that size already cannot grow."""

    def __init__(self) -> None:
        self.server = EmbeddedPostgres(settings=_SETTINGS)

    def fill(self) -> None:
        self._limit(16 * 1024 * 1024)  # The write-ahead log's files have just that.

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        # The server's first process before all others: what it starts from then on is limited as well.
        if self.server.running:
            _limit_process(self.server.pid, size)
        for pid in list(processes_in(self.server.data_dir)):
            _limit_process(pid, size)


def _limit_process(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def small_file_system() -> Iterator[SmallDisk]:
    """A file system in memory, mounted for the length of the block; the test is skipped where that is not allowed."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queuert-disk-")))
        options = f"size={_SIZE},mode=0711"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "queuert", str(place)], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
        disk = FileSystem(place)
        stack.callback(disk.server.close)
        yield disk


@contextmanager
def limited_files() -> Iterator[SmallDisk]:
    """A server whose files can be kept from growing."""
    disk = FilesThatCannotGrow()
    try:
        yield disk
    finally:
        disk.server.close()
