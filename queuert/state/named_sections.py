"""Reads SQL statements and Lua scripts from files of several sections, each below a line ``-- name: claim``."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

_HEADER = re.compile(r"^-- name: (\w+)$\n", re.MULTILINE)


def read_sections(package: str, folder: str, suffix: str) -> dict[str, str]:
    """Reads the sections of all files of a package's folder, by name. Each file is one group of operations.

    Raises:
        ValueError: two sections have one name, or a file has text above its first section.
    """
    sections: dict[str, str] = {}
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(suffix):
            _add_sections(file, sections)
    return sections


def read_file(package: str, name: str) -> dict[str, str]:
    """Reads the sections of one file of a package, by name.

    Raises:
        ValueError: two sections have one name, or the file has text above its first section.
    """
    sections: dict[str, str] = {}
    _add_sections(files(package).joinpath(name), sections)
    return sections


def _add_sections(file: Traversable, sections: dict[str, str]) -> None:
    above, *parts = _HEADER.split(file.read_text(encoding="utf-8"))
    if above.strip():
        raise ValueError(f"{file.name} must begin with a line `-- name: ...`, got {above.strip()[:60]!r}")
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in sections:
            raise ValueError(f"section names must be unique, got {name!r} again in {file.name}")
        sections[name] = text.rstrip("\n") + "\n"
