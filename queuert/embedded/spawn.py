"""Starting a program that ends when this process does, whoever kills it."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

Identity = Literal["self", "namespace", "nobody"]

_LAUNCH = Path(__file__).with_name("launch.py")
_Process = subprocess.Popen[bytes]
_Call = tuple[Callable[[], _Process], "Future[_Process]"]


class _Renewer:
    """A thread that starts every server and lives as long as the process.

    The kernel's parent-death signal is bound to the *thread* that started the program: started from a worker thread
    of the caller's, a server would stop when that thread ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    def call(self, function: Callable[[], _Process]) -> _Process:
        """Run the function on the thread and return what it returns, or raise what it raises."""
        with self._lock:
            if not self._started:
                threading.Thread(target=self._run, name="queuert-servers", daemon=True).start()
                self._started = True
        future: Future[_Process] = Future()
        self._calls.put((function, future))
        return future.result()

    def _run(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


_renewer = _Renewer()


def _renew_renewer() -> None:
    """A fork copies the object and not its thread."""
    global _renewer
    _renewer = _Renewer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_renewer)


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    death_signal: int,
    identity: Identity = "self",
    environment: Mapping[str, str] | None = None,
) -> _Process:
    """Start a server, in a session of its own, so that a Ctrl-C on the terminal does not reach it before us.

    Safe from any thread. `death_signal` is what the server gets when this process ends in a way that runs no handler
    (Linux alone; elsewhere the server then stays). Its output is appended to `log`.
    """
    signal_number = death_signal if sys.platform == "linux" else 0
    wrapped = wrap(command, identity=identity, death_signal=signal_number)

    def start() -> _Process:
        with log.open("ab") as output:
            return subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )

    return _renewer.call(start)


def wrap(command: Sequence[str], *, identity: Identity, death_signal: int = 0) -> list[str]:
    """The command that becomes `command` under another identity, and with a parent-death signal."""
    return [sys.executable, "-SE", str(_LAUNCH), identity, str(os.getpid()), str(death_signal), *command]
