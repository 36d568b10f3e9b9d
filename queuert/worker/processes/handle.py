"""The worker's handle of a child process: starts it, exchanges messages, kills it, waits for its end."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Self

from queuert.worker.processes.interpreter_flags import interpreter_flags
from queuert.worker.processes.messages import HEADER, packed

_COMMAND = "from queuert.worker.processes.child import main; main({socket}, {parent})"
_WAITS_WITHOUT_REAPING = hasattr(os, "waitid")
_DRAIN_TIMEOUT = 1.0
"""Seconds in which the messages of a dead child are read, if a process that it started keeps the socket open."""


class ChildProcess:
    """A child process, in a process group of its own. ``start`` makes one."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> None:
        self.used = False
        """Whether it has run a handler."""
        self.exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """The return code, once it has ended."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._reaped = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, name=name, daemon=True).start()

    @classmethod
    async def start(cls, name: str, setup: object) -> Self:
        """Start a new interpreter.

        Raises:
            OSError: the system cannot create a process or a socket.
            RuntimeError: it cannot create a thread.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                # Nothing is awaited from here on, so a cancellation cannot leave an unknown process behind.
                process = _spawn(theirs)
                try:
                    child = cls(process, reader, writer, name)
                except BaseException:
                    # No thread could be created to wait for it.
                    _kill_group(process.pid)
                    process.wait()
                    raise
            except BaseException:
                writer.close()
                raise
        child.send(setup)
        return child

    @property
    def alive(self) -> bool:
        """Whether it can run an attempt."""
        return not self.exited.done() and not self._reader.at_eof() and not self._reaped

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Send a message. If the child has ended, the message is lost."""
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    async def receive(self) -> object | None:
        """Return the next message; None at the end."""
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            message: object = pickle.loads(await self._reader.readexactly(length))
            return message
        except (asyncio.IncompleteReadError, OSError):
            return None

    def hang_up(self) -> None:
        """Close the worker's end of the socket: an idle child ends, a busy one kills itself."""
        self._writer.close()

    # --- end ----------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill it, and all processes of its group. Idempotent."""
        with self._lock:
            if not self._reaped:
                _kill_group(self._process.pid)

    async def end(self) -> int | None:
        """Wait for its end, and return its return code; None if somebody else has reaped it.

        A child that has closed its socket and still runs is killed.
        """
        await asyncio.wait([self.exited], timeout=_DRAIN_TIMEOUT)
        self.kill()
        return await asyncio.shield(self.exited)

    def close(self) -> None:
        """Close the socket, and read no more messages."""
        self._writer.transport.abort()
        if self._drain_timer is not None:
            self._drain_timer.cancel()

    def _wait(self) -> None:
        known = True
        if _WAITS_WITHOUT_REAPING:
            try:
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                # Somebody else in this process has reaped it, or ignores SIGCHLD. Its id may belong to another by now.
                known = False
        else:
            self._process.wait()
        with self._lock:
            if _WAITS_WITHOUT_REAPING and known:
                # Before it is reaped, its id cannot belong to another process group.
                _kill_group(self._process.pid)
            code = self._process.wait()
            self._reaped = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._ended, code if known else None)

    def _ended(self, code: int | None) -> None:
        self._drain_timer = self._loop.call_later(_DRAIN_TIMEOUT, self._writer.transport.abort)
        if not self.exited.done():
            self.exited.set_result(code)


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    command = _COMMAND.format(socket=theirs.fileno(), parent=os.getpid())
    # In this thread, which lives as long as the worker: the kernel kills the child when the thread ends.
    return subprocess.Popen(
        [sys.executable, *interpreter_flags(), "-c", command],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
