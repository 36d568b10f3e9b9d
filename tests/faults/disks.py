"""A server whose disk is full: on a small file system, or, if none may be mounted, with files that cannot grow."""

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
    """A server whose free space a test can take and release."""

    server: EmbeddedPostgres

    @abstractmethod
    def fill(self) -> None:
        """Leave the server no space."""

    @abstractmethod
    def free(self) -> None:
        """Free the space again."""


class FileSystem(SmallDisk):
    """A small file system in memory, which a large file fills."""

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
    """A limit on the size of files, for every process of the server: files of that size cannot grow."""

    def __init__(self) -> None:
        self.server = EmbeddedPostgres(settings=_SETTINGS)

    def fill(self) -> None:
        self._limit(16 * 1024 * 1024)  # The files of the write-ahead log have exactly that size.

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        # Limit the server's first process before all others: the processes that it starts later inherit the limit.
        if self.server.running:
            _limit_process(self.server.pid, size)
        for pid in list(processes_in(self.server.data_dir)):
            _limit_process(pid, size)


def _limit_process(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def small_file_system() -> Iterator[SmallDisk]:
    """Mount a file system in memory for the length of the block; skip the test if that is not allowed."""
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
    """Yield a server whose files can be kept from growing."""
    disk = FilesThatCannotGrow()
    try:
        yield disk
    finally:
        disk.server.close()
