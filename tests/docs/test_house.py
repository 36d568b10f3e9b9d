"""The map of the modules names all packages, and files that are there."""

from __future__ import annotations

import re

from scripts.check_docs import ROOT

TEXT = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
NAMES = re.findall(r"`([^`]+)`", TEXT)


def test_every_package_has_its_place() -> None:
    packages = sorted(path.parent.name for path in (ROOT / "queuert").glob("*/__init__.py"))
    assert len(packages) > 10
    assert [name for name in packages if f"`queuert/{name}/`" not in TEXT] == []


def test_every_directory_of_tests_is_named_or_called_like_what_it_tests() -> None:
    tested = {path.stem for path in (*ROOT.iterdir(), *(ROOT / "queuert").iterdir())}
    directories = sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})
    assert [name for name in directories if name not in tested and name not in NAMES] == []


def test_what_is_named_is_there() -> None:
    files = {path.name for top in ("queuert", "scripts", "tests") for path in (ROOT / top).rglob("*")}
    named = [name.rpartition("/")[2] for name in NAMES if name.endswith((".py", ".sql")) and "*" not in name]
    assert len(named) > 10
    assert [name for name in named if name not in files] == []
