"""A proxy before Postgres that stops a client's messages at a chosen one: to the server, its process stands still."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Gate:
    """Passes a number of messages on, and then stops the connection of the next one.

    The server sees what it sees of a process that is stopped: no more messages, and a connection that stays open.
    Answers, and other connections, pass.

    Attributes:
        address: where to connect instead of the server.
        stopped: a message was held back.
    """

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self._server = (str(parts["host"]), int(parts["port"] or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = make_conninfo(
            dsn, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable", gssencmode="disable"
        )
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._left: int | None = None
        self._held: socket.socket | None = None
        self._open = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_after(self, messages: int) -> None:
        """Pass so many messages on from now, and hold back the next one, and what comes after it."""
        with self._lock:
            self._left = messages

    @property
    def port(self) -> int:
        """The port from which the connection comes that is held back, as the server sees it."""
        assert self._held is not None
        port: int = self._held.getsockname()[1]
        return port

    def is_read(self) -> bool:
        """Whether the server has read all that was passed on, by the table of the system's connections."""
        here, there = f":{self.port:04X}", f":{self._server[1]:04X}"
        waiting = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            sent, received = (int(queue, 16) for queue in queues.split(":"))
            if local.endswith(here) and remote.endswith(there):
                waiting += sent
            elif local.endswith(there) and remote.endswith(here):
                waiting += received
        return waiting == 0

    def close(self) -> None:
        """Close all connections."""
        self._open.set()
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            for run in (self._requests, self._answers):
                threading.Thread(target=run, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            stream = client.makefile("rb")
            server.sendall(_message(stream.read, typed=False))
            while message := _message(stream.read):
                if self._holds(server):
                    self.stopped.set()
                    self._open.wait()
                    return
                server.sendall(message)
            server.shutdown(socket.SHUT_WR)

    def _holds(self, server: socket.socket) -> bool:
        with self._lock:
            if self._left is None or self._held is not None:
                return False
            self._left -= 1
            if self._left >= 0:
                return False
            self._held = server
            return True

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while some := server.recv(65536):
                with suppress(OSError):
                    client.sendall(some)
            client.shutdown(socket.SHUT_WR)


def _message(read: Callable[[int], bytes], *, typed: bool = True) -> bytes:
    """Read a message of the protocol: a type, unless it is the first one, a length, and that many bytes less four."""
    head = read(5 if typed else 4)
    if len(head) < 4:
        return b""
    (length,) = struct.unpack("!I", head[-4:])
    return head + read(length - 4)
