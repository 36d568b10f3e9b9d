"""The demo's processes: the driver and the workers, each in a group of its own, none of which outlives this one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from queuert.cli.exit_codes import redacted
from queuert.demo.settings import JOB_TYPES, PROCESSORS, SCHEMA, DemoSettings
from queuert.embedded.spawn import spawn

_STOP_SECONDS = 20.0

LISTENS = r"serving on 127\.0\.0\.1, port (\d+)"
"""What the log of the dashboard has when it listens."""


class Process:
    """A child with a log of its own."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        # Linux kills it when this process ends, however that happens.
        self._process = spawn(
            [sys.executable, *arguments], log=log, death_signal=signal.SIGKILL, environment=environment
        )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, as subprocess says it; None while it lives."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and its children (Spark's Java is one)."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it and wait for its end. Idempotent."""
        # Its group may live on without it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        return self._process.wait()

    def stop(self) -> int:
        """Ask it to stop, and wait; returns its exit code, negative when it had to be killed."""
        self.send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_STOP_SECONDS)
        self.kill()
        return -signal.SIGKILL

    def find(self, pattern: str) -> str | None:
        """The first group of a pattern that its log has; None as long as it has none."""
        with suppress(OSError):
            found = re.search(pattern, self._log.read_text(encoding="utf-8", errors="replace"))
            return found[1] if found else None
        return None

    def last_words(self) -> str:
        """The last line of its log."""
        with suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
            return redacted(next((line.strip() for line in reversed(lines) if line.strip()), ""))
        return ""


def start_worker(number: int, settings: DemoSettings, *, workspace: Path, environment: Mapping[str, str]) -> Process:
    """Start ``queuert worker`` with the demo's processors."""
    name = f"demo-{number}"
    command = ["-m", "queuert", "worker", PROCESSORS, "--schema", SCHEMA, "--name", name]
    command += ["--concurrency", str(settings.concurrency)]
    return Process(name, command, log=workspace / f"{name}.log", environment=environment)


def start_dashboard(*, workspace: Path, environment: Mapping[str, str]) -> Process:
    """Start ``queuert web`` on a free port, for requests that name this machine."""
    command = ["-m", "queuert", "web", JOB_TYPES, "--schema", SCHEMA, "--port", "0", "--environment", "demo"]
    command += ["--access", "queuert.cli.dashboard:on_this_machine"]
    return Process("dashboard", command, log=workspace / "dashboard.log", environment=environment)


def start_driver(
    settings: DemoSettings, report: Path, history: Path, *, workspace: Path, environment: Mapping[str, str]
) -> Process:
    """Start the driver."""
    command = ["-m", "queuert.demo.driver", "--slots", str(settings.slots)]
    command += ["--report", str(report), "--history", str(history)]
    command += [] if settings.files is None else ["--files", str(settings.files)]
    command += [] if settings.spark else ["--no-spark"]
    return Process("driver", command, log=workspace / "driver.log", environment=environment)
