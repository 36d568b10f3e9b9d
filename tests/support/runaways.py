"""A test that runs away fails, by its name, and takes nothing else with it: a plugin of pytest.

| what runs away | what happens |
|---|---|
| a test that reaches its timeout | it fails, also if the code under test caught the exception |
| one that goes on after that | the exception is raised again, and at last the process ends: its test has failed |
| one that fails, and whose fixtures then do not end | they have a timeout of their own |
| one that allocates without end | its process ends at `--memory-limit`: its test has failed |

pytest-timeout raises its exception in the test, once. What catches every exception, as the loops of a worker do,
catches that one too: the test ran on for as long as it liked, and then passed. Where a process ends, pytest-xdist names
its test and runs the others in another one. `docs/design/tests.md` says more.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, NoReturn

import pytest
import pytest_timeout

MEMORY_LIMIT = 2048
"""Megabytes that a test process may take. It takes up to 1,100; servers and the JVM have processes of their own."""

RINGS = 3
"""How often the timeout is raised in a test before its process is ended."""

EXIT_CODE = 70

_LOOK_EVERY = 0.1
"""Seconds between two looks at the memory."""


class Watch:
    """The timeout of the test that runs now."""

    def __init__(self, item: pytest.Item, settings: Any) -> None:
        self.item = item
        self.settings = settings
        self.seconds: float = settings.timeout
        self.rings = 0
        """How often the timeout was reached."""
        self.in_phase = False
        """Whether code of the test runs: what is raised in pytest's own, such as a report on its way, ends the run."""
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
        if not self.in_phase:
            return
        if self.rings > RINGS:
            leave(self.item, f"caught its timeout of {self.seconds:g} seconds {RINGS} times, and went on")
        raise_timeout(number, frame)


class MemoryWatch(threading.Thread):
    """Ends the process when it has taken more than it may."""

    def __init__(self, megabytes: int) -> None:
        super().__init__(name="memory of the tests", daemon=True)
        self.item: pytest.Item | None = None
        """The test that runs."""
        self._megabytes = megabytes
        self._ended = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._ended.wait(_LOOK_EVERY):
            if self.item is not None and peak_memory() > self._megabytes:
                leave(self.item, f"made its process take more than {self._megabytes} MB of memory")

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def peak_memory() -> int:
    """Return the most megabytes that this process has taken at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


_WATCH = pytest.StashKey[Watch]()
_MEMORY = pytest.StashKey[MemoryWatch]()
_PEAKS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the limit."""
    parser.addoption(
        "--memory-limit",
        type=int,
        default=MEMORY_LIMIT,
        metavar="MEGABYTES",
        help="memory that one test process may take; 0 for no limit",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep what the processes report."""
    config.stash[_PEAKS] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch the memory of this process."""
    limit: Any = session.config.getoption("memory_limit")
    watch = session.config.stash[_MEMORY] = MemoryWatch(limit)
    if limit:
        watch.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remember which test runs."""
    item.config.stash[_MEMORY].item = item
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Let the timer of pytest-timeout ring again, and remember that it rang."""
    result = yield
    watch = item.stash.setdefault(_WATCH, Watch(item, settings))
    raise_timeout = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(raise_timeout):
        handler = raise_timeout
        signal.signal(signal.SIGALRM, lambda number, frame: watch.ring(handler, number, frame))
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout / RINGS)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """The timeout may be raised from here on."""
    yield from _phase(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """The timeout may be raised from here on."""
    yield from _phase(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """The timeout may be raised from here on.

    A test that has failed has no timer any more: pytest-timeout has stopped it, for debuggers. Then a fixture that does
    not end would hold up the whole run.
    """
    watch = item.stash.get(_WATCH, None)
    if watch is not None and watch.settings.method == "signal" and not any(signal.getitimer(signal.ITIMER_REAL)):
        item.ihook.pytest_timeout_set_timer(item=item, settings=watch.settings)
    yield from _phase(item)


def _phase(item: pytest.Item) -> Generator[None, None, None]:
    watch = item.stash.get(_WATCH, None)
    if watch is None:
        return (yield)
    watch.in_phase = True
    try:
        return (yield)
    finally:
        watch.in_phase = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that has reached its timeout, whatever its report says."""
    report = yield
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


def leave(item: pytest.Item, why: str) -> NoReturn:
    """End this process, and say why."""
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
    watch = session.config.stash[_MEMORY]
    if watch.is_alive():
        watch.end()
    peak = peak_memory()
    output: Any = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["peak"] = peak
    else:
        session.config.stash[_PEAKS].setdefault("main", peak)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what a process has told; one that died, or failed at its end, has not."""
    output = getattr(node, "workeroutput", None)
    if output is not None and "peak" in output:
        node.config.stash[_PEAKS][node.gateway.id] = output["peak"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the peak of memory of each test process."""
    peaks = config.stash[_PEAKS]
    each = ", ".join(f"{name} {peak}" for name, peak in sorted(peaks.items()))
    terminalreporter.line(f"peak memory of the test processes, MB: {each}; together {sum(peaks.values())}")
