"""Run the quick size of the tests on each version of Python that pyproject.toml promises, one after the other.

An interpreter is found on the PATH, as `python3.12`, else among those of pyenv. A version that is not found is named at
the end and fails nothing; the run fails if the tests failed on a version, or if none was found. Arguments are those of
`make test`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_VERSION = "import sys; print(*sys.version_info[:2], sep='.')"
_LONGEST_START = 60.0
"""Seconds after which an interpreter that does not say its version counts as one that does not run."""


def promised(root: Path = ROOT) -> list[str]:
    """Return the versions that the classifiers of pyproject.toml name, as `3.11`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[1] for one in project["classifiers"] if (found := _CLASSIFIER.fullmatch(one))]


def find(version: str) -> Path | None:
    """Return the first interpreter that really has the version: a version manager's shim may exist and fail."""
    return next((path for path in _candidates(version) if _version_of(path) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    for directory in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        yield Path(directory) / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    patches = [path.name.removeprefix(f"{version}.") for path in pyenv.glob(f"versions/{version}.*")]
    # Not those such as 3.14.0rc1.
    for patch in sorted((int(patch) for patch in patches if patch.isdecimal()), reverse=True):
        yield pyenv / "versions" / f"{version}.{patch}" / "bin" / "python"


def _version_of(path: Path) -> str | None:
    try:
        done = subprocess.run(
            [path, "-c", _VERSION], capture_output=True, text=True, check=False, timeout=_LONGEST_START
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Result:
    """What came of a version: no path if it was not found."""

    version: str
    path: Path | None = None
    passed: bool = False

    def __str__(self) -> str:
        if self.path is None:
            return f"{self.version} not found: no python{self.version} on the PATH or in pyenv runs; install one"
        if self.passed:
            return f"{self.version} passed"
        return f"{self.version} failed: make test PYTHON={shlex.quote(str(self.path))}"


def make_test(python: Path, arguments: Sequence[str]) -> bool:
    """Run `make test` on a Python; return whether it passed. What a make around this one was given is not for it."""
    outer = {name for name in os.environ if name.startswith("MAKE") or name in ("MFLAGS", "ARGS", "PYTHON")}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", "test", f"PYTHON={python}", f"ARGS={shlex.join(arguments)}"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def run(versions: Sequence[str], test: Callable[[Path], bool]) -> list[Result]:
    """Test each version that is found, also after one that failed."""
    results = []
    for version in versions:
        path = find(version)
        if path is not None:
            print(f"pythons: {version}: {path}", flush=True)
        results.append(Result(version, path, path is not None and test(path)))
    return results


def passed(results: Sequence[Result]) -> bool:
    """Whether the tests passed on each version that was found, and at least one was."""
    found = [result for result in results if result.path is not None]
    return bool(found) and all(result.passed for result in found)


def main(arguments: Sequence[str]) -> int:
    """Run all versions, and say at the end what came of each."""
    try:
        results = run(promised(), lambda python: make_test(python, arguments))
    except KeyboardInterrupt:
        return 130
    for result in results:
        print(f"pythons: {result}")
    done = passed(results)
    print(f"pythons: {'passed' if done else 'failed'}", flush=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
