"""Certificates that are made for a test, and a front that speaks TLS for servers that were built without."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WAIT = 20.0
_SSL_REQUEST = 80877103
_PLAIN_REQUESTS = (80877104,)  # That for GSSAPI's encryption.


class Authority:
    """Signs certificates for names and addresses; everybody who trusts ``root`` believes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The authority of a test")])
        self.root = folder / "root.pem"
        made = self._certificate(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.root.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts: str) -> Path:
        """A file with a key and its certificate, for these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        made = self._certificate(subject, key.public_key(), names)
        path = self._folder / f"{hosts[0]}.pem"
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(private + made.public_bytes(pem))
        return path

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=self._name, public_key=key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(key)
        builder = builder.add_extension(issuer, critical=False).add_extension(own, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class TlsFront:
    """Takes TLS connections on 127.0.0.1 and passes what they say on to a server that speaks none.

    With ``asked`` it first answers as Postgres does, where a client asks in plain text whether there is TLS.
    """

    def __init__(self, target: tuple[str, int], certificate: Path, *, requested: bool) -> None:
        self._target = target
        self._requested = requested
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.port = 0
        self._thread.start()
        assert self._ready.wait(WAIT)

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        context = None if self._requested else self._context
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await self._agreed(reader, writer) if self._requested else b""
            from_server, to_server = await asyncio.open_connection(*self._target)
            try:
                to_server.write(first)
                await asyncio.gather(_pass(reader, to_server), _pass(from_server, writer))
            finally:
                to_server.transport.abort()  # The end of the front may come before either has begun to pass.
        except (OSError, asyncio.IncompleteReadError):
            pass  # Who does not like the certificate goes away.
        finally:
            writer.transport.abort()

    async def _agreed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Answer requests for encryption; what came after them is the server's."""
        while True:
            head = await reader.readexactly(8)
            [code] = struct.unpack("!4xI", head)
            if code in _PLAIN_REQUESTS:
                writer.write(b"N")
            elif code == _SSL_REQUEST:
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
            else:
                return head


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()
