"""The keys of a namespace."""

from __future__ import annotations

from queuert.errors import ConfigurationError
from queuert.payloads import check_text

DEFAULT_NAMESPACE = "default"


def prefix(namespace: str) -> str:
    """Return the prefix of all keys of a namespace. Its braces are a hash tag, so all keys share a cluster slot.

    Ids follow the prefix, so braces in them do not change the slot: only the first pair of braces counts.

    Raises:
        ConfigurationError: the namespace contains a brace, which would end the tag.
        InvalidIdentifierError: the namespace is empty, or cannot be stored.
    """
    check_text(namespace, what="namespace")
    if not namespace or {"{", "}"}.intersection(namespace):
        raise ConfigurationError(f"namespace must be a text without braces, got {namespace!r}")
    return f"{{queuert:{namespace}}}:"
