"""A receiver of webhooks on loopback, which answers as a test says, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
Speak = Callable[[asyncio.StreamWriter], Awaitable[None]]


def status(code: int, *headers: str, body: str = "") -> bytes:
    """An answer with a status, headers such as ``retry-after: 5``, and a body."""
    lines = [f"HTTP/1.1 {code} Answer", f"content-length: {len(body.encode())}", *headers, "", body]
    return "\r\n".join(lines).encode()


@dataclass
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What a receiver has received, and how it answers: bytes, or a function that writes them."""

    port: int = 0
    answer: bytes | Speak = NO_CONTENT
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    closing: bool = False
    scheme: str = "http"
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://{self.host}:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        """The ids of the deliveries, in order, repeated ones as often as they came."""
        return [one.headers["webhook-id"] for one in self.requests]

    async def wait_for(self, count: int) -> list[Received]:
        """Wait until so many requests have arrived."""
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, and answer it."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ")
            async with self.arrived:
                self.requests.append(Received(method, path, headers, body))
                self.arrived.notify_all()
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
                await writer.drain()
            else:
                await self.answer(writer)
        writer.transport.abort() if self.closing else writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        self.tasks.discard(task)

    async def close(self) -> None:
        """End what is still being answered."""
        self.closing = True
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def receiving(
    answer: bytes | Speak = NO_CONTENT, *, certificate: str | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Receiver]:
    """Yield a receiver that listens; with a file of a certificate and its key, by HTTPS."""
    receiver = Receiver(answer=answer)
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        receiver.scheme = "https"
    server = await asyncio.start_server(receiver.handle, host, 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    receiver.host = host
    try:
        yield receiver
    finally:
        server.close()
        await receiver.close()
