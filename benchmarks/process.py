"""Contestants as processes: one request to each, an answer from each, none that outlives its time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeAlias

from benchmarks.child import MARK, Request

_LAUNCH = Path(__file__).with_name("launch.py")
_SHOWN_LINES = 3
_GOODBYE_SECONDS = 10.0


Tell: TypeAlias = Callable[[str], object]
"""Is given a line of progress."""


class ContestantFailed(Exception):
    """A contestant ended without an answer; the message has the last lines of what it said."""


class Child:
    """A contestant at work on one request; :meth:`answer` waits for it."""

    def __init__(self, python: str, module: str, request: Request, *, timeout: float, tell: Tell | None = None) -> None:
        self._tell = tell
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._timed_out = self._closed = False
        self._timeout = timeout
        self._process = subprocess.Popen(
            [python, "-P", str(_LAUNCH), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=tempfile.gettempdir(),
            env=_environment(),
            start_new_session=True,
            text=True,
        )
        self._timer = self._killed_after(timeout)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait until it says that it waits for jobs.

        Raises:
            ContestantFailed: it ended before.
        """
        self._hear("ready")

    def go(self) -> None:
        """Let one begin that waits for others to be ready."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        """Wait for the numbers, and for its end.

        Raises:
            ContestantFailed: it ended without any, or took too long.
        """
        answer = self._hear("answer")["answer"]
        self._timer.cancel()
        self._timer = self._killed_after(_GOODBYE_SECONDS)
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            pass
        self.close()
        return {str(name): float(value) for name, value in answer.items()}

    def close(self) -> None:
        """End it and what it started, whatever it does."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._kill()
        self._process.wait()
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._errors.close()

    def _hear(self, what: str) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                said: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if said["say"] == what:
                    return said
                if said["say"] == "progress" and self._tell is not None:
                    self._tell(said["text"])
        self._process.wait()
        message = self._last_words()
        self.close()
        raise ContestantFailed(message)

    def _last_words(self) -> str:
        if self._timed_out:
            return f"took more than {self._timeout:.0f} s"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-_SHOWN_LINES:]) or f"ended with {self._process.returncode}"

    def _killed_after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        timer.start()
        return timer

    def _give_up(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        """Its session was made for it, so the group is its own processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(python: str, module: str, request: Request, *, timeout: float, tell: Tell | None = None) -> Iterator[Child]:
    """A contestant for the length of a ``with`` block."""
    child = Child(python, module, request, timeout=timeout, tell=tell)
    try:
        yield child
    finally:
        child.close()


def ask(python: str, module: str, request: Request, *, timeout: float, tell: Tell | None = None) -> dict[str, float]:
    """Have a contestant do one thing, and return its numbers.

    Raises:
        ContestantFailed: it did not do it.
    """
    with running(python, module, request, timeout=timeout, tell=tell) as child:
        return child.answer()


def ask_together(python: str, module: str, request: Request, count: int, *, timeout: float) -> dict[str, float]:
    """Have several processes share one thing, all begun at once: their numbers together.

    Raises:
        ContestantFailed: one of them did not do it.
    """
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(running(python, module, request, timeout=timeout)) for _ in range(count)]
        for child in children:
            child.wait_until_ready()
        for child in children:
            child.go()
        answers = [child.answer() for child in children]
    together = {name: sum(one[name] for one in answers) for name in ("cpu_us", "rss_mib")}
    seconds = max(one["seconds"] for one in answers)
    return {"rate": request.jobs / seconds, "seconds": seconds, **together}


def _environment() -> dict[str, str]:
    """Ours, without what would lead libpq or Python elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON", "QUEUERT_"))}
