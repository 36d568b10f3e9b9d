"""Tests that run away fail by their names, and those after them run as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TIMEOUTS = """
import asyncio
import signal

import pytest

soon = pytest.mark.timeout(1)


def spin():
    while True:
        pass


@soon
def test_swallows_its_timeout():
    try:
        spin()
    except BaseException:
        pass


@soon
def test_swallows_everything():
    while True:
        try:
            spin()
        except BaseException:
            pass


def test_after_a_process_that_ended():
    pass


@soon
@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail():
    spin()


@soon
def test_a_task_keeps_the_exception():
    async def main():
        task = asyncio.ensure_future(asyncio.to_thread(int))
        await task
        task = asyncio.ensure_future(work())
        await asyncio.wait([task])

    async def work():
        spin()

    asyncio.run(main())


@soon
def test_stops_the_timer():
    signal.setitimer(signal.ITIMER_REAL, 0)
    asyncio.run(asyncio.sleep(1.5))


@pytest.fixture
def hangs_at_its_end():
    yield
    try:
        spin()
    except BaseException:
        pass


@soon
def test_with_a_fixture_that_hangs(hangs_at_its_end):
    pass


@pytest.fixture
def goes_on_at_its_end():
    yield
    spin()


@soon
def test_fails_and_then_hangs(goes_on_at_its_end):
    raise ValueError


def test_after_all_of_them():
    pass
"""

MEMORY = """
import pytest


def test_allocates_without_end():
    hoard = []
    while True:
        hoard.append(bytearray(10_000_000))


def test_allocates_and_swallows_the_error():
    hoard = []
    while True:
        try:
            hoard.append(bytearray(10_000_000))
        except BaseException:
            pass


def test_after_all_of_them():
    assert len(bytes(50_000_000)) == 50_000_000
"""


@dataclass
class Ran:
    """What a run returned, printed, and recorded of each test that failed, by the name after `test_`."""

    code: int
    printed: str
    failed: dict[str, str]


def run(directory: Path, tests: str, *arguments: str) -> Ran:
    """Run these tests with the limits."""
    (directory / "test_all.py").write_text(tests)
    record = directory / "record.json"
    names = ("tests.support.runaways", "tests.support.record", "timeout", "xdist", "no:cacheprovider")
    plugins = [argument for name in names for argument in ("-p", name)]
    options = (f"--rootdir={directory}", "-o", "addopts=", "--memory-limit=400", "--record", str(record))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, *arguments, str(directory)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },  # to import all plugins takes longer than these tests
        capture_output=True,
        text=True,
        check=False,
    )
    failed = json.loads(record.read_text())["failed"] if record.exists() else {}
    by_test = {name.rpartition("::")[2].removeprefix("test_"): text for name, text in failed.items()}
    return Ran(done.returncode, done.stdout + done.stderr, by_test)


@pytest.fixture(scope="module")
def timeouts(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Tests that reach their timeouts, in a process that is started anew when it ends."""
    return run(tmp_path_factory.mktemp("timeouts"), TIMEOUTS, "--timeout=60", "-n", "1", "--max-worker-restart=9")


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Tests that allocate."""
    return run(tmp_path_factory.mktemp("memory"), MEMORY, "--timeout=60", "-n", "1", "--max-worker-restart=9")


def test_each_that_reaches_its_timeout_fails_and_no_other(timeouts: Ran) -> None:
    assert set(timeouts.failed) == {
        "swallows_its_timeout",
        "swallows_everything",
        "is_expected_to_fail",
        "a_task_keeps_the_exception",
        "stops_the_timer",
        "with_a_fixture_that_hangs",
        "fails_and_then_hangs",
    }


@pytest.mark.parametrize(
    ("test", "phase"),
    [
        ("swallows_its_timeout", "call"),
        ("is_expected_to_fail", "call"),
        ("a_task_keeps_the_exception", "call"),
        ("stops_the_timer", "call"),
        ("with_a_fixture_that_hangs", "teardown"),
    ],
)
def test_a_timeout_that_something_caught_fails_the_test(timeouts: Ran, test: str, phase: str) -> None:
    assert f"test_{test} reached its timeout of 1 seconds in its {phase} phase" in timeouts.failed[test]


def test_one_that_catches_every_timeout_ends_its_process(timeouts: Ran) -> None:
    assert "crashed while running" in timeouts.failed["swallows_everything"]
    assert (
        "test_swallows_everything caught its timeout of 1 seconds 3 times, and went on: its process ends"
        in timeouts.printed
    )


def test_each_that_allocates_without_end_fails_and_no_other(memory: Ran) -> None:
    assert set(memory.failed) == {"allocates_without_end", "allocates_and_swallows_the_error"}
    for test, text in memory.failed.items():
        assert "crashed while running" in text
        assert f"test_{test} made its process take more than 400 MB of memory: its process ends" in memory.printed


def test_the_memory_of_each_process_is_printed(timeouts: Ran) -> None:
    assert "peak memory of the test processes, MB: gw" in timeouts.printed
