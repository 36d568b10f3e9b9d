"""The demo's children: their logs, their ends, and their own children."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from queuert.demo.database import Database
from queuert.demo.processes import LISTENS, Process, start_dashboard

StartPython = Callable[[str], Process]


@pytest.fixture
def start_python(tmp_path: Path) -> Iterator[StartPython]:
    """A function that starts a child which runs some Python."""
    started: list[Process] = []

    def start(code: str) -> Process:
        log = tmp_path / f"{len(started)}.log"
        started.append(Process("child", ["-c", code], log=log, environment={**os.environ}))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_last_words_hold_no_password(start_python: StartPython) -> None:
    process = start_python(
        "import sys; print('first', flush=True); sys.exit('postgresql://me:hunter2@host failed\\n\\n')"
    )
    process.wait()
    assert process.exit_code == 1
    assert process.last_words() == "postgresql://me:***@host failed"


def test_stop_gives_the_exit_code(start_python: StartPython, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    process = start_python(
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "signal.sigwait([signal.SIGTERM])\n"  # not pause(), which could miss one that comes just before it
        "sys.exit(7)"
    )
    ready.read_text()
    assert process.stop() == 7
    assert not process.alive
    process.kill()
    assert process.exit_code == 7


def test_a_kill_reaches_the_childs_children(start_python: StartPython, tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    os.mkfifo(reported)
    # The grandchild holds the pipe open for as long as it lives: its end is the end of the file.
    process = start_python(
        "import signal, subprocess, sys\n"
        f"pipe = open({str(reported)!r}, 'w')\n"
        "pipe.write('ready\\n'); pipe.flush()\n"
        f"subprocess.Popen([{sys.executable!r}, '-c', 'import signal; signal.pause()'], pass_fds=[pipe.fileno()])\n"
        "signal.pause()"
    )
    with reported.open() as pipe:
        assert pipe.readline() == "ready\n"
        process.kill()
        assert pipe.read() == ""


def test_the_dashboard_is_served_to_this_machine(tmp_path: Path, bare_dsn: str) -> None:
    with Database(bare_dsn) as database:
        database.create()
        dashboard = start_dashboard(workspace=tmp_path, environment={**os.environ, "QUEUERT_URL": bare_dsn})
        try:
            while (port := dashboard.find(LISTENS)) is None:
                assert dashboard.alive, dashboard.last_words()
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port}/dashboard/"
            assert "demo" in httpx.get(address).text
            assert httpx.get(address, headers={"Host": "elsewhere.example"}).status_code == 403
        finally:
            dashboard.kill()
            database.drop()
