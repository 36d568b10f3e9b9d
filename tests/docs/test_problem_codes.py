"""The codes of errors over HTTP are those of the document that lists them, with their statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from queuert.web.problems import _CODES, _STATUS_OF, _STATUSES, phrase_code

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/web.md"


def listed() -> set[tuple[int, str]]:
    section = PAGE.read_text("utf-8").partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", section, re.MULTILINE)
    return {(int(status), code) for status, codes in rows for code in re.findall(r"`([a-z-]+)`", codes)}


def raised() -> Iterator[tuple[int, str]]:
    """What the interface raises by itself, without the dashboard."""
    for path in (ROOT / "queuert/web").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="HTTPException"), args=[ast.Constant(value=int(status)), *_]):
                    yield status, phrase_code(status)
                case ast.Call(func=ast.Name(id="Problem"), args=[ast.Constant(value=int(status)), code, *_]):
                    match code:
                        case ast.Constant(value=str(one)):
                            yield status, one
                        case ast.JoinedStr():
                            yield status, "chain-failed"
                            yield status, "chain-cancelled"


def test_the_codes_that_are_raised_are_listed() -> None:
    found = set(raised())
    assert len(found) > 15
    assert found - listed() == set()


def test_the_codes_of_errors_are_listed() -> None:
    found = {(_STATUS_OF.get(cls, _STATUSES[cls.kind]), code) for cls, code in _CODES}
    assert found - listed() == set()


def test_no_other_codes_are_listed() -> None:
    known = {code for _, code in raised()} | {code for _, code in _CODES}
    assert {code for _, code in listed()} - known == set()
