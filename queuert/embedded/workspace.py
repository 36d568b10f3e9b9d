"""The directories of servers that nobody gave a directory, and what their owners left behind."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_ENOUGH = 2 * 1024**3
_PREFIX = "queuert-server-"
_LOCK = "owner.lock"


class Workspace:
    """A temporary directory that is removed by its owner, or by the next one when its owner was killed.

    The owner holds a lock on a file in it; the kernel drops the lock when the owner dies, however that happens.
    """

    def __init__(self, *, in_memory: bool) -> None:
        """Make the directory: in shared memory when that is wanted and has room, else where temporary files go."""
        base = _SHARED_MEMORY if in_memory and has_room(_SHARED_MEMORY) else Path(tempfile.gettempdir())
        remove_abandoned(base)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        unlocked = self.path / "unlocked"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # nobody finds the file before it is locked

    def remove(self) -> None:
        """Remove the directory and all that is in it; a second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def has_room(path: Path) -> bool:
    """Whether files can be written below the path and at least 2 GiB are free: in containers it is often 64 MiB."""
    try:
        return os.access(path, os.W_OK | os.X_OK) and shutil.disk_usage(path).free >= _ENOUGH
    except OSError:
        return False


def remove_abandoned(base: Path) -> None:
    """Remove the directories whose owners are gone, and whose servers are."""
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and _is_abandoned(path) and not any(processes_in(path)):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Whether nobody holds the lock. A directory without its file is one that is being made at this moment."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def processes_in(path: Path) -> Iterator[int]:
    """The ids of the processes whose working directory is the path or below it; none where there is no /proc.

    A zombie has no working directory, so it is never among them.
    """
    resolved = path.resolve()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            working_directory = Path(os.readlink(entry / "cwd"))  # noqa: PTH115  (it must not follow further)
            if working_directory.is_relative_to(resolved):
                yield int(entry.name)
