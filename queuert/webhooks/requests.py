"""The only place from which webhooks are sent: one POST, to an address that was checked.

The name is resolved once, every address that it has is checked, and the connection goes to one of these addresses, not
to the name. Nothing is followed, and nothing of the environment (proxies, netrc) is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from queuert.optional_packages import needing_extras
from queuert.webhooks.addresses import Address, Target, TargetPolicy
from queuert.webhooks.errors import ForbiddenTargetError

with needing_extras("webhooks"):
    import h11

MOST_READ = 16 * 1024
"""Bytes of an answer's body that are read."""

MOST_HEAD = 32 * 1024
"""Bytes of an answer's head that are accepted."""

_RESOLVE_TIMEOUT = 5.0
_BODY_SECONDS = 2.0
"""Seconds for the body of an answer: its status is known then, and the body is for the log alone."""

_MOST_INFORMATIONAL = 4
_TRIED_ADDRESSES = 3


def _threads() -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
    """Return threads for what blocks: for reading certificates, and for look-ups of names.

    Not those of the event loop, which handlers may have taken. A look-up that got no answer in time keeps its thread
    until the system gives up, half a minute or more.
    """
    return (
        ThreadPoolExecutor(1, thread_name_prefix="queuert-webhooks-certificates"),
        ThreadPoolExecutor(64, thread_name_prefix="queuert-webhooks-names"),
    )


_reading, _looking_up = _threads()
_under_way: dict[tuple[str, int], Future[list[str]]] = {}
"""Look-ups that have not ended. All who need the same name wait for the same one: a name whose servers do not answer
takes one thread, however many deliveries there are."""
_under_way_lock = threading.Lock()


def _forget_threads() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _reading, _looking_up, _under_way_lock
    (_reading, _looking_up), _under_way_lock = _threads(), threading.Lock()
    _under_way.clear()


os.register_at_fork(after_in_child=_forget_threads)

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, for a port."""


class RequestFailed(Exception):
    """A request got no answer, or was not made.

    Attributes:
        code: what kind of failure it was: ``dns``, ``connection``, ``tls``, ``timeout``, ``http`` or
            ``forbidden_target``. It is all that is shown, since more could tell about the network of the worker.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request.

    Attributes:
        body: its first bytes.
        retry_after: the header ``Retry-After``, as it was sent.
    """

    status: int
    body: bytes
    retry_after: str | None = None


async def post(
    url: str, body: bytes, headers: Mapping[str, str], policy: TargetPolicy, *, resolve: Resolver | None = None
) -> HttpAnswer:
    """Send a POST request, and return the answer, whatever its status.

    Args:
        headers: those beside ``Host``, ``Content-Length`` and the like.
        resolve: looks up names, instead of the system; what it returns is checked all the same.

    Raises:
        RequestFailed: there was no answer; ``code`` says why.
    """
    try:
        target = policy.check_url(url)
        async with asyncio.timeout(policy.timeout):
            addresses = await _addresses(target, policy, resolve or _resolved)
            reader, writer = await _connected(target, addresses, policy)
            try:
                exchange = _Exchange(reader, writer)
                await exchange.send(target, body, headers)
                await exchange.read_head()
            except BaseException:
                writer.transport.abort()
                raise
    except ForbiddenTargetError:
        raise RequestFailed("forbidden_target") from None
    except TimeoutError:
        raise RequestFailed("timeout") from None
    except ssl.SSLError:
        raise RequestFailed("tls") from None
    except (h11.ProtocolError, UnicodeError):
        raise RequestFailed("http") from None
    except OSError:
        raise RequestFailed("connection") from None
    try:
        # The receiver has decided: what becomes of the body changes nothing.
        with contextlib.suppress(OSError, h11.ProtocolError):
            async with asyncio.timeout(_BODY_SECONDS):
                await exchange.read_body()
    finally:
        # Not closed politely: that would wait for an answer that may never come.
        writer.transport.abort()
    return exchange.answer


async def _resolved(name: str, port: int) -> list[str]:
    """Look a name up by the system."""
    key = name, port
    with _under_way_lock:
        found = _under_way.get(key)
        if found is None:
            found = _under_way[key] = _looking_up.submit(_look_up, name, port)
    # Who gives up waiting does not take it from the others.
    return await asyncio.shield(asyncio.wrap_future(found))


def _look_up(name: str, port: int) -> list[str]:
    try:
        return [str(one[4][0]) for one in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
    finally:
        with _under_way_lock:
            del _under_way[name, port]


async def _addresses(target: Target, policy: TargetPolicy, resolve: Resolver) -> list[Address]:
    """Return the addresses of a target, all of which are allowed."""
    if target.address is not None:
        return [target.address]
    # A full name, so that no search domain is tried. Names that the operator allows may be those of a hosts file.
    name = target.host if target.host in frozenset(policy.allow_hosts) else f"{target.host}."
    try:
        async with asyncio.timeout(_RESOLVE_TIMEOUT):
            found = await resolve(name, target.port)
    except (socket.gaierror, UnicodeError):
        raise RequestFailed("dns") from None
    try:
        addresses = [ipaddress.ip_address(one.partition("%")[0]) for one in dict.fromkeys(found)]
    except ValueError:
        raise RequestFailed("dns") from None
    if not addresses:
        raise RequestFailed("dns")
    policy.check_addresses(target.host, addresses)
    return addresses


async def _connected(
    target: Target, addresses: Sequence[Address], policy: TargetPolicy
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses that answers. Each has an equal share of the time that is left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + policy.connect_timeout
    tried = addresses[:_TRIED_ADDRESSES]
    for index, address in enumerate(tried):
        left = len(tried) - index
        try:
            async with asyncio.timeout((deadline - loop.time()) / left):
                return await _connected_to(target, address, policy)
        except ssl.SSLError:
            raise
        except OSError:
            if left == 1:
                raise
    raise RequestFailed("connection")


async def _connected_to(
    target: Target, address: Address, policy: TargetPolicy
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), target.port))
        if ipaddress.ip_address(sock.getpeername()[0]) != address:
            raise RequestFailed("forbidden_target")
        encrypted: dict[str, Any] = {}
        if target.scheme == "https":
            encrypted = {"ssl": await _tls_context(policy.ca_file), "server_hostname": target.host}
        return await asyncio.open_connection(sock=sock, **encrypted)
    except BaseException:
        sock.close()
        raise


async def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return the context of connections that trust the certificates of a file, or those of the system."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_reading, _trusting, ca_file)
    except OSError:  # also that the file has no certificate
        raise RequestFailed("tls") from None


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    return _cached_context(ca_file, None if ca_file is None else Path(ca_file).stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _cached_context(ca_file: str | None, changed: int | None) -> ssl.SSLContext:
    """Read the certificates, which takes some 25 ms for those of a system; a file again once it has changed."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Exchange:
    """One request and its answer on an open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._status = 0
        self._retry_after: str | None = None
        self._body = bytearray()

    @property
    def answer(self) -> HttpAnswer:
        """The answer, as far as it was read."""
        return HttpAnswer(self._status, bytes(self._body[:MOST_READ]), self._retry_after)

    async def send(self, target: Target, body: bytes, headers: Mapping[str, str]) -> None:
        """Send the request."""
        fields = {
            "host": target.host_header,
            "content-length": str(len(body)),
            "accept-encoding": "identity",
            "connection": "close",
            **headers,
        }
        request = h11.Request(method="POST", target=target.path, headers=list(fields.items()))
        send = self._protocol.send
        parts = (send(request), send(h11.Data(data=body)), send(h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))
        with contextlib.suppress(ConnectionError):
            # A receiver may answer, and refuse, before it has read all.
            await self._writer.drain()

    async def read_head(self) -> None:
        """Read status and headers of the answer."""
        informational = 0
        while not self._status:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
                given = dict(event.headers).get(b"retry-after")
                self._retry_after = None if given is None else given.decode("latin-1")
            elif isinstance(event, h11.InformationalResponse) and informational < _MOST_INFORMATIONAL:
                informational += 1
            else:
                raise RequestFailed("http")

    async def read_body(self) -> None:
        """Read the beginning of the answer's body."""
        while len(self._body) < MOST_READ:
            event = await self._next_event()
            if not isinstance(event, h11.Data):
                return
            self._body += event.data

    async def _next_event(self) -> Any:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._reader.read(MOST_HEAD))
        return event
