"""What the embedded servers have in common: a process, a port, a log and a directory."""

import abc
import atexit
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from queuert.embedded.errors import EmbeddedServerError
from queuert.embedded.ports import ReservedPort
from queuert.embedded.workspace import Workspace, processes_in

_POLL_SECONDS = 0.01
_ORPHAN_SECONDS = 5.0
_LOG_LINES = 20


class EmbeddedServer(abc.ABC):
    """A server that this process owns.

    It can be started, stopped, killed and started again, from any thread but by one at a time, and keeps its port and
    its data for as long as the object is not closed. It ends with this process: by `close`, at the interpreter's exit,
    or, on Linux, by a signal of the kernel's when this process is killed. Do not start it in a process that then
    goes on as a forked child.
    """

    name: str
    stop_signal: signal.Signals
    quit_signal: signal.Signals

    def __init__(
        self, data_dir: str | os.PathLike[str] | None, port: int | None, timeout: float, in_memory: bool
    ) -> None:
        self._workspace: Workspace | None = None
        self._in_memory = in_memory
        self._data_dir = None if data_dir is None else Path(data_dir).resolve()
        self._port = port
        self._fixed_port = port is not None
        self._reserved: ReservedPort | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.timeout = timeout

    @property
    def data_dir(self) -> Path:
        """The directory of the server's data; a temporary one is made at the first use, and goes with `close`."""
        if self._data_dir is None:
            self._workspace = Workspace(in_memory=self._in_memory)
            self._data_dir = self._workspace.path / "data"
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """Where the server's output goes: beside the data directory."""
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; a free one is chosen at the first use, and kept, also while it is not running."""
        if self._port is None:
            self._reserved = ReservedPort()
            self._port = self._reserved.number
        return self._port

    @property
    def pid(self) -> int:
        """The id of the server's process.

        Raises:
            EmbeddedServerError: it is not running; start it first.
        """
        if self._process is None or not self.running:
            raise EmbeddedServerError(f"{self.name} is not running: call start() first.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing when it is running.

        Raises:
            EmbeddedServerError: there is no program to run, the data directory is in use, or the server ended or did
                not answer within `timeout` seconds. The end of its log is in the message.
        """
        if self.running:
            return self
        self._owner = os.getpid()
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)
        try:
            self._prepare()
            self._require_no_orphans()
            self._launch()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop the server in an orderly way, and wait; what does not stop within `timeout` seconds is killed."""
        if self._process is None:
            return
        for signal_number in (self.stop_signal, self.quit_signal):
            if not self.running:
                break
            self._process.send_signal(signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL), and wait for its process and its children to be gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._orphans_end()

    def restart(self) -> Self:
        """Stop the server when it is running, and start it again on the same port and data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the server, and remove its data when they were in a temporary directory."""
        self.stop()
        self._give_up_port()
        atexit.unregister(self._close_at_exit)
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = self._data_dir = None

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """The last lines of the server's log; empty when there is none."""
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Make the data directory ready for a start."""

    @abc.abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process."""

    @abc.abstractmethod
    def _is_ready(self, pid: int) -> bool:
        """Whether it is the server with this pid that answers requests, and not another on the same port."""

    def _launch(self) -> None:
        """A free port is free until somebody else takes it: with one of our own choice, choose again."""
        for last in (False, False, True):
            self._process = self._spawn()
            if self._is_ready_in_time(self._process.pid):
                return
            ended, message = not self.running, self.log_tail()
            self.kill()
            if last or self._fixed_port or not ended or "Address already in use" not in message:
                raise self._error("did not start" if ended else f"did not answer within {self.timeout} s")
            self._give_up_port()
            self._port = None

    def _give_up_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _is_ready_in_time(self, pid: int) -> bool:
        return wait_until(lambda: not self.running or self._is_ready(pid), self.timeout) and self.running

    def _orphans_end(self) -> bool:
        """Whether no process works in the data directory; children of a killed server end on their own, soon after."""
        return wait_until(lambda: not any(processes_in(self.data_dir)), _ORPHAN_SECONDS)

    def _require_no_orphans(self) -> None:
        """A second server beside the children of a first spoils the data."""
        if not self._orphans_end():
            process = next(processes_in(self.data_dir), None)
            raise self._error(f"cannot use {self.data_dir}, which process {process} uses: stop that process")

    def _error(self, what: str) -> EmbeddedServerError:
        tail = self.log_tail()
        return EmbeddedServerError(f"{self.name} {what}." + (f" The end of its log:\n{tail}" if tail else ""))

    def _close_at_exit(self) -> None:
        """A forked child inherits this call, and not the server."""
        if self._owner == os.getpid():
            self.close()


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask until the answer is yes, or for `timeout` seconds; the last answer."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
