"""A pooler between an adapter and Postgres, as far as notifications are concerned.

It tells its clients a process number of its own, as poolers do. In transaction mode a client holds a server only while
a query is under way: what the server sends in between, such as notifications, reaches nobody.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
_KEY_DATA, _NOTIFICATION, _READY = b"K", b"A", b"Z"
_TIMEOUT = 20.0


class FakePooler:
    """Listens on a port of its own and lends each client a server connection."""

    def __init__(self, dsn: str, *, transaction_mode: bool) -> None:
        parts = urlsplit(dsn)
        self._target = (parts.hostname or _HOST, parts.port or 5432)
        self._listener = socket.create_server((_HOST, 0))
        self._sockets = ExitStack()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        port = self._listener.getsockname()[1]
        netloc = f"{parts.netloc.rpartition('@')[0]}@{_HOST}:{port}"
        self.dsn = parts._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl()
        self.transaction_mode = transaction_mode

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # Somebody may have been accepted at this very moment: an adapter that is open yet connects when it has to.
        self._accepting.join(_TIMEOUT)
        self._sockets.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.enter_context(client)
                server = self._sockets.enter_context(socket.create_connection(self._target))
                _Lent(self, client, server).start()


class _Lent:
    """One client and its server."""

    def __init__(self, pooler: FakePooler, client: socket.socket, server: socket.socket) -> None:
        self._pooler = pooler
        self._client = client
        self._server = server
        self._query_under_way = True

    def start(self) -> None:
        for pump in (self._to_server, self._to_client):
            threading.Thread(target=self._pump, args=[pump], daemon=True).start()

    def _pump(self, pump: object) -> None:
        assert callable(pump)
        with suppress(OSError, EOFError):
            pump()
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _to_server(self) -> None:
        while data := self._client.recv(65536):
            self._query_under_way = True
            self._server.sendall(data)

    def _to_client(self) -> None:
        with self._server.makefile("rb") as stream:
            while head := stream.read(5):
                kind, size = head[:1], struct.unpack("!i", head[1:])[0]
                body = stream.read(size - 4)
                if kind == _NOTIFICATION and self._pooler.transaction_mode and not self._query_under_way:
                    continue
                if kind == _READY:
                    self._query_under_way = False
                if kind == _KEY_DATA:
                    body = struct.pack("!i", 1) + body[4:]
                self._client.sendall(head + body)
