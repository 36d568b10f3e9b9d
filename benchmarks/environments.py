"""A virtual environment for each peer, built once and kept under a cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.model import Contestant

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
CACHE = ROOT / ".cache" / "benchmarks"
_LAST_LINES = 4
_PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


class EnvironmentFailed(Exception):
    """A peer cannot be installed here; the message has pip's last lines."""


class Environments:
    """Finds the interpreter of a contestant's environment, and builds that when it is not there."""

    def __init__(self, cache: Path = CACHE, peers: Path = PEERS) -> None:
        self._cache = cache
        self._peers = peers
        self._failed: dict[str, str] = {}

    def python(self, contestant: Contestant) -> str:
        """The interpreter of a contestant: ours, unless it is a peer.

        Raises:
            EnvironmentFailed: its packages cannot be installed here. It is tried once a run.
        """
        peer = contestant.peer
        if peer is None:
            return sys.executable
        if peer in self._failed:
            raise EnvironmentFailed(self._failed[peer])
        try:
            return str(self._built(peer, _interpreter(contestant.needs)))
        except EnvironmentFailed as error:
            self._failed[peer] = str(error)
            raise

    def version(self, contestant: Contestant) -> str:
        """The version of its package that is installed there.

        Raises:
            EnvironmentFailed: its packages cannot be installed here.
        """
        code = f"import importlib.metadata as m; print(m.version({contestant.package!r}))"
        done = subprocess.run([self.python(contestant), "-c", code], capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"

    def _built(self, peer: str, interpreter: str) -> Path:
        """Named for what is in it, so that changed requirements make a new one."""
        requirements = self._peers / f"{peer}.txt"
        pinned = hashlib.sha256(requirements.read_bytes() + interpreter.encode() + sys.version.encode())
        folder = self._cache / f"{peer}-{pinned.hexdigest()[:12]}"
        if not (folder / ".complete").exists():
            for old in self._cache.glob(f"{peer}-*"):
                shutil.rmtree(old)
            _build(folder, interpreter, requirements)
        return folder / "bin" / "python"


def _interpreter(needs: tuple[int, int]) -> str:
    """This one, or a newer one on the PATH where it is too old."""
    if sys.version_info >= needs:
        return sys.executable
    major, oldest = needs
    for minor in range(oldest, oldest + 4):
        candidates = [
            shutil.which(f"python{major}.{minor}"),
            *sorted(_PYENV.glob(f"versions/{major}.{minor}.*/bin/python")),
        ]
        for path in candidates:
            if path is not None and _runs(str(path)):
                return str(path)
    raise EnvironmentFailed(f"not measured: it needs Python {major}.{oldest} or newer, and there is none")


def _runs(python: str) -> bool:
    """A version manager's shim may exist and fail."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _build(folder: Path, interpreter: str, requirements: Path) -> None:
    _run([interpreter, "-m", "venv", str(folder)], folder)
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes"]
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", *options, "-r", str(requirements)], folder)
    (folder / ".complete").touch()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise EnvironmentFailed("cannot be installed here: " + " / ".join(lines[-_LAST_LINES:]))
