"""Statements and scripts by name: several in one file, each below a line ``-- name: claim``."""

from __future__ import annotations

import re
from importlib.resources import files

_HEADER = re.compile(r"^-- name: (\w+)$\n", re.MULTILINE)


def read_sections(package: str, folder: str, suffix: str) -> dict[str, str]:
    """The sections of all files of a package's folder, by name. Each file is one group of operations.

    Raises:
        ValueError: two sections have one name, or a file has text above its first section.
    """
    found: dict[str, str] = {}
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(suffix):
            continue
        above, *parts = _HEADER.split(file.read_text(encoding="utf-8"))
        if above.strip():
            raise ValueError(f"{folder}/{file.name} must begin with a line `-- name: ...`, got {above.strip()[:60]!r}")
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{folder}/{file.name} defines {name!r}, which another section defines already")
            found[name] = text.rstrip("\n") + "\n"
    return found
