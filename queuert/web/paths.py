"""Paths of requests: ids that are any text, and the prefix under which an application is mounted."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.types import Scope

_PREFIX = re.compile(r"(?:/[\w.~%-]+)*", re.ASCII)
_BASE = "queuert.base"
"""The key of the scope for the path of the application."""


class _IdConvertor(Convertor[str]):
    """An id in a path. Ids may be any text, also with slashes: see ``with_whole_segments``."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("id", _IdConvertor())


def with_whole_segments(scope: Scope) -> Scope:
    """Return the scope with a path in which an escaped slash is still escaped.

    Servers decode the path, so that ``/chains/a%2Fb`` and ``/chains/a/b`` look the same. The raw path tells them apart.
    Frameworks cut the prefix of a mount from the path alone, or not at all, and some add a slash: the end of the raw
    path that stands for the path is used.
    """
    if scope["type"] != "http":
        return scope
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"].rstrip("/")
    segments = (scope.get("raw_path") or b"").decode("latin-1").rstrip("/").split("/")
    escaped = path.replace("%", "%25")
    for first in range(1, len(segments)):
        parts = [unquote(one) for one in segments[first:]]
        if f"/{'/'.join(parts)}".rstrip("/") == path:
            escaped = "".join("/" + one.replace("%", "%25").replace("/", "%2F") for one in parts)
            break
    escaped_root = root.replace("%", "%25")
    if escaped in ("", escaped_root):
        escaped += "/"
    return {**scope, "path": escaped, "root_path": escaped_root, _BASE: quote(root)}


def base_path(request: Request) -> str:
    """The path of the application as clients see it. ``X-Forwarded-Prefix`` is only shown to who has sent it."""
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    base: str = request.scope[_BASE]
    return (prefix if _PREFIX.fullmatch(prefix) else "") + base
