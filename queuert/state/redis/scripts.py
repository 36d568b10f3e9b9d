"""The Lua scripts: one file for each group of operations, and a library that precedes each operation.

A script is called by its digest. A server that does not know it (after a restart, a failover or SCRIPT FLUSH) gets its
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from queuert.state.named_sections import read_sections


@dataclass(frozen=True, slots=True)
class Script:
    """The script of one operation."""

    name: str
    text: bytes
    digest: str
    """The SHA-1 by which a server knows the text."""


_LUA = files("queuert.state.redis") / "lua"


_END = b"end\nlocal answer = operation()\nwrite_counts()\nreturn answer"


@cache
def _library() -> bytes:
    directory = _LUA / "lib"
    names = sorted(one.name for one in directory.iterdir() if one.name.endswith(".lua"))
    return b"\n".join((directory / name).read_bytes() for name in names)


@cache
def script(name: str) -> Script:
    """Return the script of this name, with the library before it."""
    operation = _operations()[name].encode()
    text = b"\n".join([_library(), b"local function operation()", operation, _END])
    # Redis names scripts by their SHA-1. It is only a name, and protects nothing.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def all_names() -> list[str]:
    """Return the names of all operations."""
    return sorted(_operations())


@cache
def _operations() -> dict[str, str]:
    return read_sections("queuert.state.redis", "lua", ".lua")
