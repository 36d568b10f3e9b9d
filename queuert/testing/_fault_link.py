"""One connection through the fault proxy, and the faults of the proxy. All of it runs on the proxy's event loop."""

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")

_CHUNK = 65536
_LINGER_NOT = struct.pack("ii", 1, 0)


class ConnectionCut(Exception):
    """The proxy itself ends the connection; this exception never leaves the proxy."""


@dataclass
class Cut:
    """A reset after a number of further bytes in one direction."""

    remaining: int
    direction: Direction


@dataclass
class Stop:
    """A stop of one connection after a number of further bytes to the server, until it may go on."""

    remaining: int
    happened: bool = False
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Loss:
    """A reset at data with a marker from a client: after forwarding the data, or instead."""

    marker: bytes
    forward: bool


def _open_gates() -> dict[Direction, asyncio.Event]:
    gates: dict[Direction, asyncio.Event] = {direction: asyncio.Event() for direction in DIRECTIONS}
    for gate in gates.values():
        gate.set()
    return gates


@dataclass
class Faults:
    """The present faults of a proxy, and the signals that it sets."""

    accepted: threading.Event
    held: threading.Event
    fired: threading.Event
    latency: float = 0.0
    refusing: bool = False
    cut: Cut | None = None
    stop: Stop | None = None
    loss: Loss | None = None
    gates: dict[Direction, asyncio.Event] = field(default_factory=_open_gates)

    def heal(self) -> None:
        """Drop every fault, also those that have not happened yet."""
        self.latency, self.refusing, self.cut, self.loss = 0.0, False, None, None
        if self.stop is not None:
            self.stop.may_go_on.set()
            self.stop = None
        for gate in self.gates.values():
            gate.set()

    def close_gates(self, directions: tuple[Direction, ...]) -> None:
        """Forward nothing in these directions."""
        for direction in directions:
            self.gates[direction].clear()


class LockedConnection:
    """A client's connection and the server's, and the two tasks that copy data between them."""

    def __init__(self, faults: Faults, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._faults = faults
        self._client = client
        self._server = server
        self._answer_is_lost = False
        self._last_bytes = b""
        self._pumps: list[asyncio.Task[None]] = []
        self._broken = False

    async def run(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        """Copy data until both sides have closed, or the connection breaks."""
        self._pumps = [
            asyncio.create_task(self._pump("to_server", from_client, self._server)),
            asyncio.create_task(self._pump("to_client", from_server, self._client)),
        ]
        try:
            await asyncio.gather(*self._pumps)
        except (ConnectionCut, OSError):
            self.reset()
        except asyncio.CancelledError:
            if not self._broken:
                raise
        finally:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for writer in (self._client, self._server):
                await close(writer)

    def reset(self) -> None:
        """Reset both connections: each side gets an RST. This also wakes a task that waits at a closed gate."""
        self._broken = True
        reset(self._client)
        reset(self._server)
        for pump in self._pumps:
            if pump is not asyncio.current_task():
                pump.cancel()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._hold(direction)
            if direction == "to_server":
                self._look_for_marker(data)
            else:
                self._lose_answer()
            await self._forward(direction, data, writer)
        if writer.can_write_eof():
            writer.write_eof()

    async def _hold(self, direction: Direction) -> None:
        """Delay the data, and wait while a black hole holds this direction."""
        if self._faults.latency:
            await asyncio.sleep(self._faults.latency)
        gate = self._faults.gates[direction]
        if not gate.is_set():
            self._faults.held.set()
            await gate.wait()

    def _look_for_marker(self, data: bytes) -> None:
        """A marker may be split over two pieces of data."""
        loss = self._faults.loss
        if loss is None:
            self._last_bytes = b""
            return
        seen = self._last_bytes + data
        if loss.marker not in seen:
            self._last_bytes = seen[max(0, len(seen) - len(loss.marker) + 1) :]
            return
        self._faults.loss = None
        if loss.forward:
            self._answer_is_lost = True
        else:
            self._break()

    def _lose_answer(self) -> None:
        if self._answer_is_lost:
            self._break()

    async def _forward(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        if direction == "to_server":
            data = await self._stop(data, writer)
        cut = self._faults.cut
        if cut is not None and cut.direction == direction:
            data, dropped = data[: cut.remaining], len(data) > cut.remaining
            cut.remaining -= len(data)
            if dropped:
                self._faults.cut = None
                await self._send_the_rest(writer, data)
        writer.write(data)
        await writer.drain()

    async def _stop(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Forward the bytes before a stop, and wait for its end; return those behind it."""
        stop = self._faults.stop
        if stop is None or stop.happened:
            return data
        passed, rest = data[: stop.remaining], data[stop.remaining :]
        stop.remaining -= len(passed)
        if not rest:
            return data
        stop.happened = True
        writer.write(passed)
        await writer.drain()
        self._faults.fired.set()
        await stop.may_go_on.wait()
        return rest

    async def _send_the_rest(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """The allowed bytes are sent before the reset, as far as a reset lets the peer read them."""
        writer.write(data)
        await writer.drain()
        self._break()

    def _break(self) -> None:
        self.reset()
        self._faults.fired.set()
        raise ConnectionCut


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with an RST instead of a FIN: set the linger time to zero."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close and wait; a connection that is broken already is closed too."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
