"""Warns of connections to a store that are not encrypted, or whose server is not verified."""

from __future__ import annotations

from ipaddress import ip_address

from queuert.state.types import StoreWarning

NOT_ENCRYPTED = "not encrypted"
NOT_VERIFIED = "server not verified"


def is_remote(host: str) -> bool:
    """Whether an address or a host name belongs to another machine. Unix sockets are local.

    Names other than ``localhost`` are not resolved and count as remote.
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
    """Return the risk of a connection to ``host``, if it has one.

    Args:
        host: the address, or the name if the address is not known.
        encrypted: whether the connection is encrypted.
        verified: whether the server's certificate and its name were verified.
        advice: what to do about it, for this kind of store.
    """
    if not is_remote(host) or (encrypted and verified):
        return ()
    if not encrypted:
        return (StoreWarning(NOT_ENCRYPTED, f"payloads can be read on the network: {advice}"),)
    return (StoreWarning(NOT_VERIFIED, f"another server could impersonate this one: {advice}"),)
