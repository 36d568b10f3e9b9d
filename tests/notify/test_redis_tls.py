"""Notifications over TLS, where what has arrived may lie in the driver or the TLS layer while the socket is silent."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queuert.notify import Topic
from queuert.observability.events import ListenerLost, ListenerRestored
from tests.notify.conftest import NewRedisParty
from tests.notify.support import QUICK, WAIT


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1's own, and its key, in one file."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "own.pem"
    made = subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=queuert"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"),
        ],
        capture_output=True,
        check=True,
    )
    path.write_bytes(made.stdout)
    return path


class TlsFront:
    """Takes TLS connections and passes what they say on to a server that speaks none."""

    def __init__(self, url: str, certificate: Path) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(WAIT)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT)

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            self._loop.call_soon_threadsafe(writer.transport.abort)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._target)
        self._writers += [writer, to_server]
        await asyncio.gather(_pass(reader, to_server), _pass(from_server, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


@pytest.fixture
def tls_front(redis_url: str, certificate: Path) -> Iterator[TlsFront]:
    front = TlsFront(redis_url, certificate)
    front.start()
    yield front
    front.close()


def test_notifications_arrive_over_tls_and_after_a_loss(
    tls_front: TlsFront, certificate: Path, redis_url: str, new_redis_party: NewRedisParty
) -> None:
    word = urlsplit(redis_url).password or ""
    url = f"rediss://:{word}@127.0.0.1:{tls_front.port}/0?ssl_ca_certs={certificate}"
    party = new_redis_party(url)
    heard, _ = party.listen(Topic.JOBS)
    plain = new_redis_party(redis_url)
    for number in range(200):
        plain.publish(Topic.JOBS, f"type-{number}")
    heard.wait_for(*(f"type-{number}" for number in range(200)))
    party.publish(Topic.JOBS, "its own")
    heard.wait_for("its own")
    assert party.recorder.events == []
    tls_front.cut()
    party.recorder.wait_for(ListenerRestored)
    party.publish(Topic.JOBS, "again")
    heard.wait_for("again")


@pytest.mark.quick
def test_a_certificate_that_is_not_trusted_is_reported(tls_front: TlsFront, new_redis_party: NewRedisParty) -> None:
    party = new_redis_party(f"rediss://127.0.0.1:{tls_front.port}/0", timeouts=QUICK)
    assert "certificate" in party.recorder.wait_for(ListenerLost).error.lower()
    assert party.recorder.of(ListenerRestored) == []
