"""A process that has imported everything and forks a child on each request.

A run kills some hundred workers, and each needs a successor at once: a fork takes milliseconds, an interpreter with its
imports most of a second. The process reads orders as lines of JSON from its standard input, and reports on its standard
output which children it forked and how they ended. When its input ends, or nobody reads its output any more, it kills
its children and ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from queuert.testing.chaos import child_processes

_READ = 65536
_STOPS = frozenset({signal.SIGTERM})


def _tell(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def _fork(order: dict[str, Any], wakeup: tuple[int, int]) -> int:
    # A signal that reaches a child before Python has finished its fork is lost there; a blocked one waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        return pid
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in wakeup:
            os.close(descriptor)
        _redirect(order["log"])
        code = child_processes.run(order["role"], order["settings"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    """No descriptor of the fork server may stay open in a child: the end of its input tells the fork server to end."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.close(nothing)


def _reap(living: set[int]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        living.discard(pid)
        _tell(ended=pid, code=os.waitstatus_to_exitcode(status))


def main() -> int:
    """Serve requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As the worker's command does when it is asked to stop before it has begun anything. Children inherit this.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    wakeup = os.pipe()
    for descriptor in wakeup:
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup[1], warn_on_full_buffer=False)
    child_processes.preload()
    gc.collect()
    gc.freeze()
    living: set[int] = set()
    with suppress(BrokenPipeError):  # The process that started this one has died without closing the input.
        _serve(wakeup, living)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0


def _serve(wakeup: tuple[int, int], living: set[int]) -> None:
    _tell(ready=True)
    rest = b""
    while True:
        readable, _, _ = select.select([0, wakeup[0]], [], [])
        if wakeup[0] in readable:
            os.read(wakeup[0], _READ)
            _reap(living)
        if 0 in readable:
            data = os.read(0, _READ)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _fork(order, wakeup)
                living.add(pid)
                _tell(started=pid, number=order["number"])


def command() -> list[str]:
    """Return the command that starts a fork server."""
    return [
        sys.executable,
        "-c",
        "import sys; from queuert.testing.chaos import fork_server; sys.exit(fork_server.main())",
    ]


def environment() -> dict[str, str]:
    """Return this environment, with the path on which this process found the package."""
    root = str(Path(__file__).parents[3])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root if not path else os.pathsep.join([root, path])}
