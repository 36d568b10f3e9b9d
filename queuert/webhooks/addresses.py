"""Which addresses a webhook may have: URLs, names and networks. It makes no connections: ``requests.py`` does."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

from queuert.errors import ConfigurationError
from queuert.webhooks.errors import ForbiddenTargetError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_URL = 2_048
_LONGEST_TIMEOUT = 30.0
_MOST_KEPT = 4_096

_FORBIDDEN = [
    ipaddress.ip_network(one)
    for one in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32"),
        *("::/8", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
]
"""Networks that are not of the public internet, and Azure's address of its metadata, which lies in it."""

_ALWAYS_FORBIDDEN = [
    ipaddress.ip_network(one)
    for one in (
        *("169.254.0.0/16", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32"),
        *("fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"),
        *("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "ff00::/8", "::/128"),
    )
]
"""Link-local networks and the metadata of clouds, which hand credentials to whoever asks; and what is no host."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL that a request needs.

    Attributes:
        host: a name in ASCII, or an address without brackets.
        address: the address, if the host is one.
        path: path and query.
    """

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None

    @property
    def host_header(self) -> str:
        """The header ``Host``."""
        host = f"[{self.host}]" if isinstance(self.address, ipaddress.IPv6Address) else self.host
        return host if self.port == {"https": 443, "http": 80}[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True)
class TargetPolicy:
    """Where webhooks may be sent, and what a request may take. The default is the public internet by HTTPS on 443.

    Args:
        allow_http: whether ``http`` is allowed, without encryption.
        allow_ports: ports beside 443, and beside 80 with ``allow_http``.
        allow_networks: private networks that are allowed, such as ``10.20.0.0/16``. Link-local addresses and the
            metadata of clouds stay forbidden.
        allow_hosts: names that may have private addresses, such as ``hooks.internal``.
        connect_timeout: seconds for the connection, the TLS handshake included. Three addresses of a name are tried
            at most, in this time together.
        timeout: seconds for the whole request, 30 at most.
        ca_file: a file with the certificates that are trusted (PEM), instead of those of the system. It is read again
            once it has changed; those of the system are read once.
        keep_answer: how many bytes of an answer are kept in the log of deliveries, 4,096 at most.

    Raises:
        ConfigurationError: a network, name or port is not valid, a time is out of range, or ``ca_file`` cannot be read
            or has no certificate.

    Example:
        >>> TargetPolicy(allow_networks=["10.20.0.0/16"]).forbids(ipaddress.ip_address("10.20.1.2"))
        False
    """

    allow_http: bool = False
    allow_ports: Iterable[int] = ()
    allow_networks: Iterable[str] = ()
    allow_hosts: Iterable[str] = ()
    connect_timeout: float = 5.0
    timeout: float = 15.0
    ca_file: str | None = None
    keep_answer: int = 512
    networks: tuple[Network, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("allow_ports", "allow_networks", "allow_hosts"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(f"{name} must be a sequence, got a string: write [...]")
        ports, hosts = frozenset(self.allow_ports), frozenset(self.allow_hosts)
        if any(type(port) is not int or not 0 < port < 65_536 for port in ports):
            raise ConfigurationError(f"allow_ports must be between 1 and 65,535, got {sorted(ports, key=repr)}")
        try:
            networks = tuple(ipaddress.ip_network(one) for one in self.allow_networks)
        except ValueError as error:
            raise ConfigurationError(f"allow_networks must be networks such as 10.20.0.0/16: {error}") from None
        for name in ("connect_timeout", "timeout"):
            if not 0 < getattr(self, name) <= _LONGEST_TIMEOUT:
                raise ConfigurationError(
                    f"{name} must be above 0 and at most {_LONGEST_TIMEOUT:g} seconds, got {getattr(self, name)}"
                )
        if not 0 <= self.keep_answer <= _MOST_KEPT:
            raise ConfigurationError(f"keep_answer must be between 0 and {_MOST_KEPT:,} bytes, got {self.keep_answer}")
        if self.ca_file is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.ca_file)
            except (OSError, TypeError) as error:
                raise ConfigurationError(
                    f"ca_file must be a file with certificates (PEM), got {self.ca_file!r}: {error}"
                ) from None
        object.__setattr__(self, "allow_ports", ports | {443} | ({80} if self.allow_http else frozenset()))
        object.__setattr__(self, "allow_hosts", frozenset(_ascii_name(one) for one in hosts))
        object.__setattr__(self, "networks", networks)

    def check_url(self, url: str) -> Target:
        """Return the parts of a URL, if requests may be sent there as far as that is known without a look-up.

        Raises:
            ForbiddenTargetError: they may not.
        """
        target = parsed(url)
        if target.scheme == "http" and not self.allow_http:
            raise ForbiddenTargetError("the URL of a webhook must begin with https://, or allow_http=True be set")
        if target.port not in frozenset(self.allow_ports):
            raise ForbiddenTargetError(f"port {target.port} of a webhook is not allowed: add it to allow_ports")
        if target.address is not None:
            self.check_addresses(target.host, [target.address])
        return target

    def check_addresses(self, host: str, addresses: Sequence[Address]) -> None:
        """Raise unless all addresses of a host are allowed.

        A name with allowed and forbidden addresses is refused: it is an attack, or a mistake.

        Raises:
            ForbiddenTargetError: one is not.
        """
        if not addresses or any(self.forbids(one, host=host) for one in addresses):
            raise ForbiddenTargetError(
                "the URL of a webhook leads to a network that is not allowed: use an address of the public internet, "
                "or allow the network or the name"
            )

    def forbids(self, address: Address, *, host: str | None = None) -> bool:
        """Whether no request may go to an address. An address that contains another one is judged by both."""
        return any(self._forbids(one, host) for one in (address, *contained(address)))

    def _forbids(self, address: Address, host: str | None) -> bool:
        if any(address in network for network in _ALWAYS_FORBIDDEN if network.version == address.version):
            return True
        if host in frozenset(self.allow_hosts):
            return False
        if any(address in network for network in self.networks if network.version == address.version):
            return False
        if address.version == 6 and address in _NAT64:
            return False
        return any(address in network for network in _FORBIDDEN if network.version == address.version)


def contained(address: Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address contains, in whatever way: mapped, compatible, translated
    (NAT64), 6to4, Teredo, ISATAP."""
    if not isinstance(address, ipaddress.IPv6Address):
        return []
    number = int(address)
    found = []
    if number >> 96 == 0 or number >> 32 == 0xFFFF or number >> 32 == 0xFFFF_0000 or address in _NAT64:
        found.append(number)
    if number >> 80 == 0x0064_FF9B_0001:
        found.append(number)
    if number >> 112 == 0x2002:
        found.append(number >> 80)
    if number >> 96 == 0x2001_0000:
        found += [number ^ 0xFFFF_FFFF, number >> 64]
    if (number >> 32) & 0xFDFF_FFFF == 0x0000_5EFE:
        found.append(number)
    return [ipaddress.IPv4Address(one & 0xFFFF_FFFF) for one in found]


def parsed(url: object) -> Target:
    """Return the parts of a URL.

    Raises:
        ForbiddenTargetError: it is not a valid URL of a webhook, whatever is allowed.
    """
    if not isinstance(url, str) or not 0 < len(url) <= LONGEST_URL:
        raise ForbiddenTargetError(f"the URL of a webhook must be a text of 1 to {LONGEST_URL:,} characters")
    if "\\" in url or not url.isprintable() or " " in url:
        raise ForbiddenTargetError("the URL of a webhook must not contain spaces, backslashes or control characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ForbiddenTargetError("the URL of a webhook must be valid, and is not") from None
    if parts.scheme not in ("https", "http"):
        raise ForbiddenTargetError(
            f"the URL of a webhook must begin with https:// or http://, got {url.split('/')[0].rpartition('@')[2]!r}"
        )
    if "@" in parts.netloc:
        raise ForbiddenTargetError("the URL of a webhook must have no user or password: use a header instead")
    if parts.fragment:
        raise ForbiddenTargetError("the URL of a webhook must have no fragment (#...)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        raise ForbiddenTargetError("the path of a webhook must be ASCII: escape other characters with %")
    name, address = _host(host, bracketed=parts.netloc.startswith("["))
    return Target(parts.scheme, name, port or (443 if parts.scheme == "https" else 80), path, address)


def _host(host: str, *, bracketed: bool) -> tuple[str, Address | None]:
    if bracketed:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            address = None
        if address is None or address.scope_id is not None:
            raise ForbiddenTargetError("the host of a webhook must be a name or an address, without a zone")
        return str(address), address
    name = _ascii_name(host)
    last = name.rpartition(".")[2]
    if not _NUMERIC.fullmatch(last):
        return name, None
    # A host that ends in a number is an address, and some resolvers take many spellings of one: only the usual is
    # accepted.
    try:
        return name, ipaddress.IPv4Address(name)
    except ValueError:
        raise ForbiddenTargetError("an IPv4 address in the URL of a webhook must be four decimal numbers") from None


def _ascii_name(host: str) -> str:
    try:
        name = host.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        name = ""
    if not 0 < len(name) <= 253 or not all(_NAME.fullmatch(label) for label in name.split(".")):
        raise ForbiddenTargetError(
            "the host of a webhook must be a name of letters, digits, '-' and '.', or an address"
        )
    return name
