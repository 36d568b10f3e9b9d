"""The Lua scripts: one file for each group of operations, and a library of which each operation gets what it uses.

A server runs a script from its first line at each call, so each function of the library that is put before an operation
costs every call of it something, used or not.

A script is called by its digest. A server that does not know it (after a restart, a failover or SCRIPT FLUSH) gets its
text.
"""

from __future__ import annotations

import re
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

_STATEMENT = re.compile(r"^local (?:function )?(?P<names>\w+(?:, \w+)*).*?(?=^local |\Z)", re.MULTILINE | re.DOTALL)
"""A top-level statement of the library: everything there is local, and only such lines are not indented."""

_WORD = re.compile(r"[A-Za-z_]\w*")

_END = "end\nlocal answer = operation()\nwrite_counts()\nwrite_events()\nreturn answer"
_READ_ONLY_END = "end\nreturn operation()"
_WRITES = {"count", "log_event"}


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of the library: the names that it declares, and the words in it."""

    names: tuple[str, ...]
    words: frozenset[str]
    text: str


@cache
def _library() -> tuple[_Statement, ...]:
    directory = _LUA / "lib"
    names = sorted(one.name for one in directory.iterdir() if one.name.endswith(".lua"))
    code = _without_comments("\n".join((directory / name).read_text(encoding="utf-8") for name in names))
    return tuple(
        _Statement(tuple(found["names"].split(", ")), frozenset(_WORD.findall(found.group())), found.group())
        for found in _STATEMENT.finditer(code)
    )


def _without_comments(text: str) -> str:
    """Drop lines that are comments: servers need none, and their words are no names of functions."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


def _used(words: set[str]) -> list[_Statement]:
    """Return the statements of the library that declare these words, and what these use, in the order of the library.

    A word may be a field or a text instead of a name: then a statement is included that is not used.
    """
    used: list[_Statement] = []
    # What a statement uses is declared before it.
    for statement in reversed(_library()):
        if not words.isdisjoint(statement.names):
            used.append(statement)
            words |= statement.words
    return used[::-1]


@cache
def script(name: str) -> Script:
    """Return the script of this name, with what it uses of the library before it."""
    operation = _operations()[name]
    words = set(_WORD.findall(operation))
    end = _END
    if not any(_WRITES.intersection(statement.names) for statement in _used(set(words))):
        end = _READ_ONLY_END
    library = [statement.text for statement in _used(words | set(_WORD.findall(end)))]
    text = "\n".join([*library, "local function operation()", operation, end]).encode()
    # Redis names scripts by their SHA-1. It is only a name, and protects nothing.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def all_names() -> list[str]:
    """Return the names of all operations."""
    return sorted(_operations())


@cache
def _operations() -> dict[str, str]:
    sections = read_sections("queuert.state.redis", "lua", ".lua")
    return {name: _without_comments(text) for name, text in sections.items()}
