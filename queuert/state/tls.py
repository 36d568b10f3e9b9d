"""Whether what passes between here and a store can be read, or answered by another, on its way."""

from __future__ import annotations

from ipaddress import ip_address

from queuert.state.types import StoreWarning

NOT_ENCRYPTED = "not encrypted"
NOT_VERIFIED = "server not verified"


def is_remote(host: str) -> bool:
    """Whether an address, or a name, is that of another machine. Sockets in the file system are here.

    Names but ``localhost`` are not looked up: they count as remote.
    """
    if not host or host.startswith(("/", "@")) or host.lower() in ("localhost", "localhost."):
        return False
    try:
        address = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_loopback


def tls_warnings(host: str, *, encrypted: bool, verified: bool, advice: str) -> tuple[StoreWarning, ...]:
    """The risk of a connection to ``host``, if it has one.

    Args:
        host: the address, or the name where the address is not known.
        encrypted: whether it is.
        verified: whether the server has shown that it is the one that was asked for, by a certificate and its name.
        advice: how to put it right, for this kind of store.
    """
    if not is_remote(host) or (encrypted and verified):
        return ()
    if not encrypted:
        return (StoreWarning(NOT_ENCRYPTED, f"payloads can be read on their way to another machine: {advice}"),)
    return (StoreWarning(NOT_VERIFIED, f"whoever answers in the server's place is believed: {advice}"),)
