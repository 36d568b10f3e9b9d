"""The Lua scripts: one file a group of operations, each operation behind the same library.

A script is sent by its digest; a server that has forgotten it (a restart, a failover, SCRIPT FLUSH) gets its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from queuert.state.named_sections import read_sections


@dataclass(frozen=True, slots=True)
class Script:
    """One operation."""

    name: str
    text: bytes
    digest: str
    """By which a server knows the text."""


_LUA = files("queuert.state.redis") / "lua"


_END = b"end\nlocal answer = operation()\nwrite_counts()\nreturn answer"


@cache
def _library() -> bytes:
    directory = _LUA / "lib"
    names = sorted(one.name for one in directory.iterdir() if one.name.endswith(".lua"))
    return b"\n".join((directory / name).read_bytes() for name in names)


@cache
def script(name: str) -> Script:
    """The operation of this name, with the library before it."""
    operation = _operations()[name].encode()
    text = b"\n".join([_library(), b"local function operation()", operation, _END])
    # Redis names scripts by their SHA-1: a name, nothing that has to withstand an attack.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def all_names() -> list[str]:
    """The names of all operations."""
    return sorted(_operations())


@cache
def _operations() -> dict[str, str]:
    return read_sections("queuert.state.redis", "lua", ".lua")
