"""The parent's side of drivers that read: start them, hear them, kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tests.spark.conftest import ROOT, spark_environment


class ReadChild:
    """A driver in a process group of its own, with its JVM."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def heard(self) -> dict[str, Any]:
        """The next line that it says; an assertion error when it ends without one."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise AssertionError(f"the driver ended with {self._process.wait()}")

    def kill(self) -> None:
        """Kill it and its JVM, without a warning."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def read_child(name: str, environment: Mapping[str, str] | None = None, **arguments: Any) -> Iterator[ReadChild]:
    """Start one of ``read_children``; it is killed at the end of the block."""
    given = {**os.environ, **spark_environment(), **(environment or {})}
    command = [sys.executable, "-m", "tests.spark.read_children", name, json.dumps(arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    )
    child = ReadChild(process)
    try:
        yield child
    finally:
        child.kill()
        assert process.stdout is not None
        process.stdout.close()
