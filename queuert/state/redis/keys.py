"""The keys of a namespace."""

from __future__ import annotations

from queuert.errors import ConfigurationError
from queuert.payloads import check_text

DEFAULT_NAMESPACE = "default"


def prefix(namespace: str) -> str:
    """What all keys of a namespace begin with. Its braces are a hash tag: they lie in one slot of a cluster.

    Ids come behind it, so what they hold, braces too, moves no key to another slot: the first pair of braces counts.

    Raises:
        ConfigurationError: the namespace is empty, or has a brace, which would end the tag.
        InvalidIdentifierError: it cannot be stored.
    """
    check_text(namespace, what="namespace")
    if not namespace or {"{", "}"}.intersection(namespace):
        raise ConfigurationError(f"namespace {namespace!r}: some text without braces")
    return f"{{queuert:{namespace}}}:"
