"""Counts what programs say to Postgres: a proxy that reads the messages that go to the server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from typing import Self
from urllib.parse import urlsplit

_EXECUTE, _QUERY, _SYNC = b"E", b"Q", b"S"
_TIMEOUT = 20.0


class Wire:
    """Passes everything on, and counts.

    Messages are counted before they are passed on: whoever has an answer finds what led to it counted.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._counts: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def dsn(self) -> str:
        """The address through the proxy, in the clear."""
        port = self._listening.getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        netloc = f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}"
        return self._parts._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl()

    @property
    def statements(self) -> int:
        """Statements that were executed, BEGIN and COMMIT among them."""
        with self._lock:
            return self._counts[_EXECUTE] + self._counts[_QUERY]

    @property
    def round_trips(self) -> int:
        """How often the server was asked to answer; what was sent in one pipeline counts once."""
        with self._lock:
            return self._counts[_SYNC] + self._counts[_QUERY]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listening)
        # Somebody may have been accepted at this very moment, such as a connection that a pool makes late.
        self._accepting.join(_TIMEOUT)
        for one in self._sockets:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # Closed: nobody is to come any more.
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                host, port = self._parts.hostname, self._parts.port
                assert host is not None
                assert port is not None
                server = socket.create_connection((host, port))
                self._sockets.append(server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(client, server, _Messages(self)), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, None), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, messages: _Messages | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if messages is not None:
                    messages.read(data)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def count(self, kind: bytes) -> None:
        """Another message of this kind."""
        with self._lock:
            self._counts[kind] += 1


def _end(one: socket.socket) -> None:
    """Close it, also while another thread waits for something to come."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class _Messages:
    """The messages of one connection; the first has no kind, and is of somebody who cancels or begins."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._data = b""
        self._begun = False

    def read(self, data: bytes) -> None:
        self._data += data
        while True:
            header = 5 if self._begun else 4
            if len(self._data) < header:
                return
            (length,) = struct.unpack_from("!i", self._data, header - 4)
            whole = length + header - 4
            if len(self._data) < whole:
                return
            if self._begun:
                self._wire.count(self._data[:1])
            self._begun = True
            self._data = self._data[whole:]
