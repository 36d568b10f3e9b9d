"""A test that runs away fails, by its name, and takes nothing else with it: a plugin of pytest.

| what runs away | what happens |
|---|---|
| a test that reaches its timeout | it fails, also if the code under test caught the exception |
| one that goes on after that | the exception is raised again, and at last the process ends: its test has failed |
| one that allocates without end | it gets `MemoryError` at `--memory-limit`, and its process ends |

pytest-timeout raises its exception in the test, once. What catches every exception, as the loops of a worker do,
catches that one too: the test ran on for as long as it liked, and then passed. `docs/design/tests.md` says more.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
import pytest_timeout

MEMORY_LIMIT = 4096
"""Megabytes of data of one test process, and of each that it starts. A test process takes less than one gigabyte; every
thread counts as 8 MB, though it uses little of it."""

RINGS = 3
"""How often the timeout is raised in a test before its process is ended."""

EXIT_CODE = 70

_FULL = 0.75
"""The share of the limit that a test must leave free for the next one."""

_MEGABYTE = 2**20


class Watch:
    """The timeout of the test that runs now."""

    def __init__(self, item: pytest.Item, seconds: float) -> None:
        self.item = item
        self.seconds = seconds
        self.rings = 0
        """How often the timeout was raised."""
        self.elapsed = 0.0
        """Seconds that its phases have taken."""
        self.failed = False
        """Whether a phase was reported as failed."""

    @property
    def reached(self) -> bool:
        """Whether the test took longer than it may. Time counts too: code that uses the same timer may stop it."""
        return self.rings > 0 or self.elapsed > self.seconds

    def ring(self, raise_timeout: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        """Raise the timeout, or end the process if the test has caught it too often."""
        if pytest_timeout.is_debugging():
            return
        self.rings += 1
        if self.rings > RINGS:
            leave(self.item, f"caught its timeout of {self.seconds:g} seconds {RINGS} times, and went on")
        raise_timeout(number, frame)


_WATCH = pytest.StashKey[Watch]()
_LIMIT = pytest.StashKey[int]()
_PEAKS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the limit."""
    parser.addoption(
        "--memory-limit",
        type=int,
        default=MEMORY_LIMIT,
        metavar="MEGABYTES",
        help="data that one test process may have; 0 for no limit",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Limit the memory of this process."""
    limit: Any = config.getoption("memory_limit")
    config.stash[_LIMIT] = limit * _MEGABYTE
    config.stash[_PEAKS] = {}
    _limit_memory(config.stash[_LIMIT])


def _limit_memory(limit: int) -> None:
    """Set the soft limit of this process; 0 removes it. Its children inherit it, and may raise it."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError):  # The process itself was given less.
        resource.setrlimit(resource.RLIMIT_DATA, (limit or most, most))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Let the timer of pytest-timeout ring again, and remember that it rang."""
    result = yield
    watch = item.stash[_WATCH] = Watch(item, settings.timeout)
    raise_timeout = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(raise_timeout):
        handler = raise_timeout
        signal.signal(signal.SIGALRM, lambda number, frame: watch.ring(handler, number, frame))
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout / RINGS)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that has reached its timeout, and end the process of one that took all memory."""
    if call.excinfo is not None:
        _limit_memory(0)  # The report takes some, too.
    report = yield
    limit = item.config.stash[_LIMIT]
    if report.failed and limit and _data_size() > limit * _FULL:
        # Whatever keeps it, the next test would have none: its frames, other threads, a module.
        leave(item, f"took nearly all memory that its process may have:\n{report.longreprtext}\n{item.nodeid}")
    _limit_memory(limit)
    watch = item.stash.get(_WATCH, None)
    if watch is None:
        return report
    watch.elapsed += call.duration
    if watch.reached and not report.failed and not watch.failed:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} reached its timeout of {watch.seconds:g} seconds in its {report.when} phase, and something "
            "caught the exception: let it pass, or bound what goes on"
        )
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    watch.failed = watch.failed or report.failed
    return report


def _data_size() -> int:
    """Return what counts against the limit, in bytes; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmData"].split()[0]) * 1024


def leave(item: pytest.Item, why: str) -> NoReturn:
    """End this process: pytest-xdist reports the test as failed, and runs the others in another one."""
    capture: Any = item.config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    stderr = sys.__stderr__
    if stderr is not None:
        stderr.write(f"\n{item.nodeid} {why}: its process ends\n")
        faulthandler.dump_traceback(stderr)
        stderr.flush()
    os._exit(EXIT_CODE)


# --- what the processes took ------------------------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one how much memory it took at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    output: Any = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["peak"] = peak
    else:
        session.config.stash[_PEAKS].setdefault("main", peak)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what a process has told; one that died has not."""
    output = getattr(node, "workeroutput", None)
    if output is not None:
        node.config.stash[_PEAKS][node.gateway.id] = output["peak"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the peak of memory of each test process."""
    peaks = config.stash[_PEAKS]
    each = ", ".join(f"{name} {peak}" for name, peak in sorted(peaks.items()))
    terminalreporter.line(f"peak memory of the test processes, MB: {each}; together {sum(peaks.values())}")
