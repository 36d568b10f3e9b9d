"""The document names tests that exist, and no test of security is left out of it."""

from __future__ import annotations

import re
from pathlib import Path

from queuert.state.postgres.roles import Role, role_names

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_promise_has_tests() -> None:
    rows = re.findall(r"^\| (S\d+) \| .* \| (.*) \|$", TEXT, re.MULTILINE)
    assert [row for row, _ in rows] == [f"S{n}" for n in range(1, 25) if n != 16]
    for row, shown in rows:
        paths = re.findall(r"`(tests/[\w/.]+)`", shown)
        assert paths, row
        assert all((ROOT / path).exists() for path in paths), row


def test_no_test_is_left_out() -> None:
    own = {path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.glob("test_*.py")}
    assert own - {Path(__file__).relative_to(ROOT).as_posix()} <= set(re.findall(r"`(tests/security/\w+\.py)`", TEXT))


def test_every_role_is_reported_of() -> None:
    for role in Role:
        assert f"| `{role_names()[role]}` |" in TEXT
