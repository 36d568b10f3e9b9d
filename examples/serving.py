"""A server of an ASGI application on this machine, for ``two_servers``, ``upload_service`` and ``webhooks``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """Leaves signals to the program, which may have more than one server."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def reserved() -> tuple[socket.socket, str]:
    """A socket on which nobody listens yet, and its address: requests to it are refused until it is served."""
    reserved = socket.socket()
    reserved.bind(("127.0.0.1", 0))
    return reserved, f"http://127.0.0.1:{reserved.getsockname()[1]}"


@asynccontextmanager
async def serving(app: Any, on: socket.socket) -> AsyncIterator[None]:
    """Serve an application on a socket, in this event loop."""
    server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))
    on.listen()
    running = asyncio.create_task(server.serve(sockets=[on]))
    try:
        yield
    finally:
        server.should_exit = True
        await running
