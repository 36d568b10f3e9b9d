"""The two sizes of the suite: what the quick one has, and that nothing is in neither."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.run_tests import ALL, APART, BY_FILE, ORDER, PARTS, pytest_arguments, split_paths, write_slow
from tests.support.sizes import AWHILE, CASES, LONG, SLOW, SLOW_FILE, cases_of, seconds_of_functions

ROOT = Path(__file__).resolve().parents[2]

DOCUMENTS = ("README.md", "docs/guide.md", "docs/reliability.md", "docs/security.md", "docs/comparison.md")
"""What promises something, and names the files whose tests show it."""

TESTS = """
import pytest

def test_single():
    pass

def test_slow():
    pass

@pytest.mark.quick
@pytest.mark.parametrize("number", range(50))
def test_takes_long(number):
    pass

@pytest.mark.quick
@pytest.mark.parametrize("number", range(50))
def test_slow_that_alone_shows_a_promise(number):
    pass

@pytest.mark.parametrize("number", range(50))
def test_takes_a_while(number):
    pass

@pytest.mark.parametrize("number", range(50))
def test_cases(number):
    pass

@pytest.mark.every_case
@pytest.mark.parametrize("number", range(50))
def test_every_case(number):
    pass
"""


def ran(directory: Path, size: str) -> set[str]:
    """Return the names of the tests that a size has."""
    (directory / "test_it.py").write_text(TESTS)
    (directory / "slow.txt").write_text(
        f"{SLOW} test_it.py::test_slow\n{SLOW} test_it.py::test_slow_that_alone_shows_a_promise\n"
        f"{AWHILE} test_it.py::test_takes_a_while\n{LONG} test_it.py::test_takes_long\n{SLOW} test_it.py::test_gone\n"
    )
    (directory / "sizes.py").write_text((ROOT / "tests/support/sizes.py").read_text())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "sizes", "-p", "tests.support.record", "-p", "no:cacheprovider"),
            *(f"--rootdir={directory}", f"--size={size}", "--record=record.json", "test_it.py"),
        ],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = json.loads((directory / "record.json").read_text())["seconds"]
    return {name.partition("::")[2] for name in seconds}


def test_the_quick_size_has_a_few_cases_of_what_is_not_slow(tmp_path: Path) -> None:
    quick = ran(tmp_path, "quick")
    found = Counter(name.partition("[")[0] for name in quick)
    assert found == {
        "test_single": 1,
        "test_cases": CASES,
        "test_slow_that_alone_shows_a_promise": CASES,
        "test_takes_long": 1,
        "test_takes_a_while": 1,
        "test_every_case": 50,
    }
    assert ran(tmp_path, "quick") == quick


def test_all_has_everything(tmp_path: Path) -> None:
    assert len(ran(tmp_path, "all")) == 252


def test_every_test_is_in_one_part() -> None:
    """The parts but the first name what they run; the first runs all but that."""
    main, *others = PARTS
    assert [one for one in main.arguments if not one.startswith("--ignore=")] == ["-n", "4", "--dist", "worksteal"]
    ignored = [one.removeprefix("--ignore=") for one in main.arguments if one.startswith("--ignore=")]
    named = [one for part in others for one in part.paths]
    assert sorted(ignored) == sorted(named) == sorted(APART)
    assert len(set(named)) == len(named)
    assert all((ROOT / one).exists() for one in named)
    assert set(BY_FILE) < set(APART)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["tests/worker"], {"main": ["tests/worker"]}),
        (["tests/cli/test_main.py::test_it", "tests/web"], {"main": ["tests/cli/test_main.py::test_it", "tests/web"]}),
        (["tests/spark/test_write.py"], {"Spark, browser and plans": ["tests/spark/test_write.py"]}),
        (["tests/chaos"], {"chaos": ["tests/chaos"]}),
        (
            ["tests/chaos/test_growth.py::test_it", "tests/redis"],
            {"main": ["tests/redis"], "chaos": ["tests/chaos/test_growth.py::test_it"]},
        ),
        (
            ["tests/state"],
            {
                "main": ["tests/state"],
                "Spark, browser and plans": [one for one in BY_FILE if one.startswith("tests/state/")],
            },
        ),
        (["tests"], {part.name: list(part.paths or ["tests"]) for part in PARTS}),
    ],
)  # fmt: skip
def test_paths_go_to_the_parts_that_have_their_tests(given: list[str], expected: dict[str, list[str]]) -> None:
    narrowed = [part for one in PARTS if (part := one.narrowed(given))]
    assert {part.name: list(part.paths) for part in narrowed} == expected


def test_paths_among_the_arguments() -> None:
    assert split_paths(["./tests/worker/", "-k", "stop", "tests"]) == (["tests/worker", "tests"], ["-k", "stop"])


def test_arguments_of_the_sizes() -> None:
    """The quick size has one order unless another is given; everything runs in a new one each time, in both modes."""
    quick = pytest_arguments(["-k", "stop"], everything=False)
    assert quick[0] == "--size=quick"
    assert quick[1].startswith(ORDER)
    assert quick[2:] == ["-k", "stop"]
    assert pytest_arguments([f"{ORDER}7"], everything=False) == ["--size=quick", f"{ORDER}7"]
    assert pytest_arguments([], everything=True) == list(ALL)
    assert not any(one.startswith(ORDER) for one in ALL)


def test_the_median_of_its_cases_says_how_long_a_function_takes(tmp_path: Path) -> None:
    path = tmp_path / "slow.txt"
    seconds = {
        "b::f[1]": SLOW + 1,
        "b::f[2]": SLOW + 2,
        "b::f[3]": 0.0,
        "a::g": SLOW + 1,
        "a::h[1]": SLOW + 9,
        "a::h[2]": 0.0,
    }
    write_slow(seconds | {"a::h[3]": 0.0}, path)
    assert path.read_text() == f"{SLOW + 1:.2f} a::g\n{SLOW + 1:.2f} b::f\n"


@pytest.mark.parametrize("given", [["--write-slow"], ["--all", "--write-slow", "-k", "stop"]])
def test_slow_functions_are_not_written_by_a_run_that_leaves_tests_out(given: list[str]) -> None:
    before = SLOW_FILE.read_text()
    done = subprocess.run(
        [sys.executable, "scripts/run_tests.py", *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--write-slow" in done.stderr
    assert SLOW_FILE.read_text() == before


def functions_of(path: Path) -> Iterator[tuple[str, bool]]:
    """The test functions of a file, and whether they are marked for the quick size."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name.startswith("test_"):
                yield prefix + member.name, any("mark.quick" in ast.unparse(one) for one in member.decorator_list)
            elif isinstance(member, ast.Assign) and ast.unparse(member.targets[0]).startswith("test_"):
                yield ast.unparse(member.targets[0]), False


def test_slow_functions_exist() -> None:
    """One that was renamed or deleted leaves the file when `make test-all ARGS=--write-slow` writes it anew."""
    names = seconds_of_functions().keys()
    files = {name.partition("::")[0] for name in names}
    existing = {f"{file}::{name}" for file in files if (ROOT / file).exists() for name, _ in functions_of(ROOT / file)}
    assert names - existing == set()


@pytest.mark.every_case
@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_file_that_shows_a_promise_has_a_test_in_the_quick_size(document: str) -> None:
    """Mark the cheapest slow one with `pytest.mark.quick`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    files = set(re.findall(r"tests/[\w/]+/test_\w+\.py", text))
    seconds = seconds_of_functions()
    without = {
        file
        for file in files
        if not any(
            marked or cases_of(seconds.get(f"{file}::{name}", 0.0)) for name, marked in functions_of(ROOT / file)
        )
    }
    assert without == set()
