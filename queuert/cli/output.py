"""Prints results: aligned columns for people, or one JSON document for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

from queuert.jobs import JobError, JobProgress
from queuert.observability.escaping import escape_json

Fields = Mapping[str, Any]

_LONGEST = 100
"""Characters of a column, in a list."""


def fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, also of those inside it."""
    return asdict(value)


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(escape_json(json.dumps(document, indent=2, ensure_ascii=False, default=_plain)))


def print_page(
    rows: Iterable[Fields], columns: Sequence[str], *, as_json: bool, next_cursor: str | None = None
) -> None:
    """Print a list: these columns of each row, or all fields as JSON."""
    entries = list(rows)
    if as_json:
        print_json({"items": entries, "next_cursor": next_cursor})
        return
    print_table(entries, columns)
    if next_cursor is not None:
        print(f"more: --cursor {next_cursor}", file=sys.stderr)


def print_table(rows: Sequence[Fields], columns: Sequence[str], *, indent: str = "") -> None:
    """Print aligned columns, or ``none`` without rows."""
    if not rows:
        print(f"{indent}none")
        return
    lines = [list(columns), *([_cut(shown(row.get(column))) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print(indent + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_fields(values: Fields) -> None:
    """Print one line for each field that is not None."""
    held = {name: value for name, value in values.items() if value is not None}
    width = max(len(name) for name in held)
    for name, value in held.items():
        print(f"{name.ljust(width)}  {shown(value)}")


def shown(value: object) -> str:
    """A value in one line, with control characters escaped."""
    if value is None:
        text = "-"
    elif isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    elif isinstance(value, float):
        text = f"{value:.1f}"
    elif isinstance(value, JobError):
        text = f"{value.kind}: {value}"
    elif isinstance(value, JobProgress):
        text = f"{value} ({shown(value.at)})"
    elif isinstance(value, str):
        text = str(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
