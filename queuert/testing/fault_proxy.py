"""A TCP proxy that breaks connections on purpose: between a client and its Postgres or Redis, in the same process.

It forwards bytes and knows no protocol. It runs on a thread of its own, so tests may be synchronous or not; a call
that changes its behaviour has taken effect when it returns.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from queuert.testing._fault_link import DIRECTIONS, Cut, Direction, Faults, LockedConnection, Loss, Stop, close, reset

__all__ = ["Direction", "FaultProxy"]

_HOST = "127.0.0.1"
_CALL_SECONDS = 10.0
_BACKLOG = 100
_T = TypeVar("_T")


class FaultProxy:
    """A proxy in front of one server. It passes everything until a method is called.

    Signals to wait for, each a `threading.Event`:

    - `accepted`: a client connected; the caller clears it;
    - `held`: a black hole got its first bytes since it was made;
    - `fired`: the fault that was armed last (`cut_after`, `stop_after`, `lose_answer`, `lose_request`) happened.

    Example:
        >>> with FaultProxy("127.0.0.1", server.port) as proxy:  # doctest: +SKIP
        ...     connection = psycopg.connect(proxy.address_in(server.dsn()))
        ...     proxy.lose_answer(b"COMMIT")
    """

    def __init__(self, host: str, port: int) -> None:
        """Store the address of the server; `start` or a `with` block starts the proxy."""
        self.target = (host, port)
        self.accepted = threading.Event()
        self.held = threading.Event()
        self.fired = threading.Event()
        self._faults = Faults(self.accepted, self.held, self.fired)
        self._links: set[LockedConnection] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._started: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._stopping: asyncio.Event = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="queuert-fault-proxy", daemon=True)

    @classmethod
    def before(cls, url: str) -> Self:
        """Return a proxy of the server in a URL of Postgres or Redis that names a host and a port.

        Raises:
            ValueError: the URL names no host or no port.
        """
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"no host and port in {url!r}: give both, or use FaultProxy(host, port).")
        return cls(parts.hostname, parts.port)

    @property
    def host(self) -> str:
        """The address that the proxy listens on."""
        return _HOST

    @property
    def port(self) -> int:
        """The port that the proxy listens on, once it is started."""
        return self._started.result(_CALL_SECONDS)[1]

    @property
    def connections(self) -> int:
        """How many connections go through the proxy now."""
        return self._call(lambda: len(self._links))

    def address_in(self, url: str) -> str:
        """The URL (of Postgres or Redis) with the proxy's address in place of the server's."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{_HOST}:{self.port}").geturl()

    def start(self) -> Self:
        """Listen on a free port.

        Raises:
            RuntimeError: it was started before; make another one.
        """
        self._thread.start()
        self._started.result(_CALL_SECONDS)
        return self

    def close(self) -> None:
        """Reset all connections and stop listening; a second call does nothing."""
        if self._thread.is_alive():
            self._call(self._stopping.set)
            self._thread.join(_CALL_SECONDS)

    def heal(self) -> None:
        """Pass everything again, on old and new connections; deliver what a black hole has held."""
        self._call(self._faults.heal)

    def delay(self, seconds: float) -> None:
        """Hold each piece of data for so many seconds, in both directions."""
        self._call(lambda: setattr(self._faults, "latency", seconds))

    def black_hole(self, *directions: Direction) -> None:
        """Forward nothing in these directions (by default in both) until `heal`, while connections stay up."""
        self.held.clear()
        self._call(lambda: self._faults.close_gates(directions or DIRECTIONS))

    def refuse(self) -> None:
        """Reset new connections as soon as they are made, until `heal`. Existing connections stay."""
        self._call(lambda: setattr(self._faults, "refusing", True))

    def reset(self) -> int:
        """Reset all connections now, on both sides, and return their number."""
        return self._call(self._reset_links)

    def cut_after(self, count: int, direction: Direction = "to_client") -> None:
        """Let `count` more bytes pass in this direction, and reset the connection that carries the next one; this
        happens once."""
        self.fired.clear()
        self._call(lambda: setattr(self._faults, "cut", Cut(count, direction)))

    def stop_after(self, count: int) -> None:
        """Let `count` more bytes pass to the server, and no more on the connection that carries the next one, until
        `heal`; this happens once. To the server its client stands still in the middle of a message. Answers pass, and
        other connections."""
        self.fired.clear()
        self._call(lambda: setattr(self._faults, "stop", Stop(count)))

    def lose_answer(self, marker: bytes) -> None:
        """Make the outcome of a commit unknown, once: the server executes it, and the client never gets the answer.

        The proxy forwards the next data from a client that contain `marker` (`b"COMMIT"`, or a comment in a statement).
        When the server's answer arrives, it drops the answer and resets the connection.
        """
        self._arm(marker, forward=True)

    def lose_request(self, marker: bytes) -> None:
        """The opposite of ``lose_answer``, once: reset the connection before the data with `marker` reach the
        server."""
        self._arm(marker, forward=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _arm(self, marker: bytes, *, forward: bool) -> None:
        if not marker:
            raise ValueError("an empty marker is in any data: name some bytes of the request.")
        self.fired.clear()
        self._call(lambda: setattr(self._faults, "loss", Loss(marker, forward)))

    def _reset_links(self) -> int:
        for link in self._links:
            link.reset()
        return len(self._links)

    def _call(self, function: Callable[[], _T]) -> _T:
        """Run the function on the event loop, which needs no locks, and return its result."""
        loop, _ = self._started.result(_CALL_SECONDS)
        future: Future[_T] = Future()
        loop.call_soon_threadsafe(lambda: future.set_result(function()))
        return future.result(_CALL_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        # A server of asyncio accepts connections in tasks of its own; a connection that is accepted while it closes
        # stays open.
        with socket.create_server((_HOST, 0), backlog=_BACKLOG) as listener:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)
            self._started.set_result((loop, listener.getsockname()[1]))
            await self._stopping.wait()
            loop.remove_reader(listener)
        self._reset_links()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # The client has gone again, or there is no free descriptor: try once more.
        connection = asyncio.get_running_loop().create_task(self._connect(client))
        self._connections.add(connection)

        def end(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            client.close()  # The task may have been cancelled before it began.

        connection.add_done_callback(end)

    async def _connect(self, client: socket.socket) -> None:
        client.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=client)
        self.accepted.set()
        try:
            await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()  # The task was cancelled while it connected to the server.

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._faults.refusing:
                raise ConnectionRefusedError
            from_server, to_server = await asyncio.open_connection(*self.target)
        except OSError:
            reset(writer)
            await close(writer)
            return
        link = LockedConnection(self._faults, writer, to_server)
        self._links.add(link)
        try:
            await link.run(reader, from_server)
        finally:
            self._links.discard(link)
