"""The map of the code names all packages and directories of tests, and documents name only files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts.check_docs import ROOT

TEXT = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STATE = ROOT / "queuert" / "state"


def names_in(text: str) -> list[str]:
    """The names in backticks, without those in blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def exists(name: str) -> bool:
    """Whether a file is named: by its path from the root or from a package, or by its last parts."""
    tops = (ROOT / top for top in ("queuert", "scripts", "tests", "alembic", "docs"))
    return (ROOT / name).exists() or any(path.match(name) for top in tops for path in top.rglob(Path(name).name))


NAMES = names_in(TEXT)
DOCUMENTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
ELSEWHERE = {"queuert/testing/conformance/cases/group.py", "federation_delivery.py", "guild_access_flow.py"}
"""A pattern, and files of another project whose requirements are compared."""
FILES = sorted(
    name
    for name in {name for text in (*DOCUMENTS.values(), CONTRIBUTING) for name in names_in(text)} - ELSEWHERE
    if re.fullmatch(r"[\w./-]+\.(py|sql|lua|md)", name)
)
GROUPS = {row[0].strip(" `"): row for line in TEXT.splitlines() if len(row := line.split("|")[1:-1]) == 6}
STORES = {3: ("postgres/sql", "sql"), 4: ("redis/lua", "lua"), 5: ("sqlite/sql", "sql")}


def test_every_package_is_named() -> None:
    packages = sorted(path.parent.name for path in (ROOT / "queuert").glob("*/__init__.py"))
    assert len(packages) > 10
    assert [name for name in packages if f"`queuert/{name}/`" not in TEXT] == []


def test_layers_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    [block] = re.findall(r"^## Import rules$.*?^```$(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    *written, values = block.split("\n")[1:-1]
    assert [set(line.split(", ")) for line in written] == [set(re.split(r" [:|] ", layer)) for layer in layers[:-1]]
    assert values.startswith("values: ")


def test_every_directory_of_tests_is_named_or_called_like_what_it_tests() -> None:
    tested = {path.stem for path in (*ROOT.iterdir(), *(ROOT / "queuert").iterdir())}
    directories = sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})
    named = {name.removeprefix("tests/").strip("/") for name in NAMES}
    assert [name for name in directories if name not in tested | named] == []


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_named_exists(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("group", sorted(GROUPS.keys() - {"group", "---"}))
def test_group_has_its_stem_in_the_stores_that_are_said_to_have_it(group: str) -> None:
    row = GROUPS[group]
    for column, (directory, suffix) in STORES.items():
        files = {path.stem for path in (STATE / directory).glob(f"*.{suffix}")}
        files |= {path.stem for path in (STATE / directory).parent.glob("*.py")}
        assert (group in files) is (row[column].strip() == "yes"), f"{group} in {directory}"


def test_all_groups_are_there() -> None:
    assert len(GROUPS) == 13, "eleven groups, the head and the line below it"
    assert len(FILES) > 40
