"""One child process, as the worker holds it: started, spoken to, killed, waited for."""

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
_LAST_WORDS = 1.0
"""Seconds in which what a dead child had sent is read, where a process of its own keeps the socket open."""


class ChildProcess:
    """A child in a process group of its own. Make it with ``start``."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> None:
        self.used = False
        """It has run a handler."""
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its return code, once it has ended."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._gone = False
        self._last_words: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, name=name, daemon=True).start()

    @classmethod
    async def start(cls, name: str, setup: object) -> Self:
        """Start a fresh interpreter.

        Raises:
            OSError: the system has no process, no memory or no file to spare.
            RuntimeError: it has no thread to spare.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                # Nothing is awaited from here on: a process that is there is known.
                process = _spawn(theirs)
                try:
                    child = cls(process, reader, writer, name)
                except BaseException:
                    # There is no thread to spare that would wait for it.
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
        """Whether it may be given something to do."""
        return not self.exited.done() and not self._reader.at_eof() and not self._gone

    # --- talking ------------------------------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Send a message; a child that is gone does not get it."""
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    async def receive(self) -> object | None:
        """The next message; None when there will be no more."""
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            message: object = pickle.loads(await self._reader.readexactly(length))
            return message
        except (asyncio.IncompleteReadError, OSError):
            return None

    def hang_up(self) -> None:
        """Close our end: an idle child ends by itself, a busy one kills itself."""
        self._writer.close()

    # --- its end ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill it, and all processes of its group. Idempotent."""
        with self._lock:
            if not self._gone:
                _kill_group(self._process.pid)

    async def end(self) -> int:
        """Its return code; one that hung up and lives on is killed."""
        await asyncio.wait([self.exited], timeout=_LAST_WORDS)
        self.kill()
        return await asyncio.shield(self.exited)

    def close(self) -> None:
        """Let go of the socket: nobody listens any more."""
        self._writer.transport.abort()
        if self._last_words is not None:
            self._last_words.cancel()

    def _wait(self) -> None:
        if _WAITS_WITHOUT_REAPING:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            if _WAITS_WITHOUT_REAPING:
                # While it is not reaped its number is its own, and names no other group.
                _kill_group(self._process.pid)
            code = self._process.wait()
            self._gone = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        self._last_words = self._loop.call_later(_LAST_WORDS, self._writer.transport.abort)
        if not self.exited.done():
            self.exited.set_result(code)


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    command = _COMMAND.format(socket=theirs.fileno(), parent=os.getpid())
    # In this very thread, which lives as long as the worker: the kernel kills the child when it ends.
    return subprocess.Popen(
        [sys.executable, *interpreter_flags(), "-c", command],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
