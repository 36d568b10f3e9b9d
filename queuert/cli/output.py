"""Prints results: aligned columns for people, or one JSON document for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from queuert.bulk_operations import BulkPreview
from queuert.documents import Document, Hidden, json_text
from queuert.jobs import JobError, JobProgress
from queuert.observability.escaping import escape_json
from queuert.texts import printable

Fields = Mapping[str, Any]

_LONGEST = 100
"""Characters of a column, in a list."""


def document_of(value: object, document: type[Document], *, payloads: bool = True) -> dict[str, Any]:
    """What is shown of a value as JSON: as its document has it, with errors."""
    return document.of(value, payloads=payloads, errors=True).as_dict()


def columns_of(value: object, columns: Sequence[str]) -> dict[str, Any]:
    """These attributes of a value, for a table."""
    return {column: getattr(value, column) for column in columns}


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(escape_json(json_text(document, indent=2)))


def print_json_line(document: object) -> None:
    """Print a JSON document in one line, and at once: a program may read it while others follow."""
    print(escape_json(json_text(document)), flush=True)


def print_changed(verb: str, names: Sequence[str], *, as_json: bool) -> None:
    """Print which were changed, such as the job types that were paused."""
    if as_json:
        print_json({verb: names})
    else:
        print(f"{verb} {len(names)}{': ' if names else ''}{', '.join(names)}")


def print_preview(would: str, preview: BulkPreview, *, confirm: str, as_json: bool) -> None:
    """Print how many chains a change would concern, of which types, and the options that confirm it."""
    if as_json:
        print_json({"count": preview.count, "more": preview.more, "groups": [asdict(one) for one in preview.groups]})
        return
    if not (preview.count or preview.more):
        print(f"{would} 0 chains")
        return
    more = " or more" if preview.more else ""
    print(
        f"{would} {preview.count}{more} chain{'' if preview.count == 1 and not more else 's'}: add {confirm} to do it"
    )
    print_table([asdict(one) for one in preview.groups], ("type", "status", "count"), indent="  ")


def print_page(
    values: Iterable[object],
    columns: Sequence[str],
    document: type[Document],
    *,
    as_json: bool,
    payloads: bool = False,
    next_cursor: str | None = None,
) -> None:
    """Print a list: these columns of each value, or its document as JSON."""
    if as_json:
        items = [document_of(value, document, payloads=payloads) for value in values]
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_values(values, columns, document, payloads=payloads)
    if next_cursor is not None:
        print(f"more: --cursor {next_cursor}", file=sys.stderr)


def print_values(
    values: Iterable[object], columns: Sequence[str], document: type[Document], *, payloads: bool, indent: str = ""
) -> None:
    """Print these columns of each value, without those that its document hides as payloads unless they are wanted."""
    if not payloads:
        columns = [column for column in columns if document.hidden.get(column) is not Hidden.PAYLOADS]
    print_table([columns_of(value, columns) for value in values], columns, indent=indent)


def print_table(rows: Sequence[Fields], columns: Sequence[str], *, indent: str = "") -> None:
    """Print aligned columns, or ``none`` without rows: of sums and the like. Values that have a document are printed by
    ``print_values``, which knows what is hidden."""
    if not rows:
        print(f"{indent}none")
        return
    lines = [list(columns), *([_in_column(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print(indent + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_fields(values: Fields) -> None:
    """Print one line for each field that has a value."""
    held = {name: value for name, value in values.items() if value is not None and value != {}}
    width = max(len(name) for name in held)
    for name, value in held.items():
        print(f"{name.ljust(width)}  {shown(value)}")


def shown(value: object) -> str:
    """A value in one line, with control characters escaped."""
    if value is None or value == {}:
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
        text = json.dumps(value, ensure_ascii=False, default=str)
    return printable(text)


def _in_column(value: object) -> str:
    """A value in a column of a list, cut; of an error its whole summary, which ``operations start --error`` takes."""
    if isinstance(value, JobError):
        return shown(value.summary)
    text = shown(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
