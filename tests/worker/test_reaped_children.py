"""The process of a handler ends for its worker also if something else in the worker's process has waited for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from queuert.worker.executors import death
from queuert.worker.processes import messages
from queuert.worker.processes.handle import ChildProcess
from tests.support.waiting import in_time

pytestmark = pytest.mark.timeout(60)


async def started() -> ChildProcess:
    setup = messages.Setup(search_path=sys.path, arguments=[], main={}, levels={}, worker="w", types=(), state=None)
    return await ChildProcess.start("child", setup)


async def test_somebody_else_reaps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a library in a handler does that calls ``os.wait()``."""

    def reaped_before(kind: int, pid: int, options: int) -> None:
        os.waitpid(pid, 0)
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", reaped_before)
    child = await started()
    child.kill()
    assert await in_time(child.receive()) is None
    assert await in_time(child.end()) is None
    assert not child.alive
    child.close()
    assert "how is not known" in death(None)


IGNORING = """
import asyncio, signal
from tests.worker.test_reaped_children import started

async def main():
    child = await started()
    child.kill()
    assert await child.receive() is None
    print("ended with", await child.end())

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
asyncio.run(main())
"""


def test_sigchld_is_ignored() -> None:
    """As a program does that does not want to hear of its children."""
    done = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, check=False, timeout=50)
    assert (done.stdout, done.returncode) == ("ended with None\n", 0), done.stderr


async def test_nobody_else_does() -> None:
    child = await started()
    child.kill()
    assert await in_time(child.end()) == -signal.SIGKILL
    child.close()
    await asyncio.sleep(0)
