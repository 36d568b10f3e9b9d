"""Every test of a directed fault that the document names exists, and every one that exists is named."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"^\| .* \| `(tests/\S+\.py)` \|$", TEXT, re.MULTILINE))


def test_what_is_named_exists() -> None:
    assert len(NAMED) > 10
    assert [name for name in sorted(NAMED) if not (ROOT / name).is_file()] == []


def test_what_exists_is_named() -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "faults").glob("test_*.py")}
    assert sorted(modules - NAMED) == []
