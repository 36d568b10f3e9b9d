"""Programs that mypy and pyright must accept, and programs that both must refuse.

Each file in ``snippets`` is checked, not run. A line that must be refused ends with ``# expect: error``; if only one
checker can see it, with ``# expect: error[mypy]`` or ``# expect: error[pyright]``. Every other line must pass. For a
statement of several lines, the comment stands on the line that the checkers report, its first.

To cover more of the API, add a file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).parent / "snippets"
ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in SNIPPETS.glob("*.py"))
EXPECTED = re.compile(r"# expect: error(?:\[(mypy|pyright)\])?\s*$")
MYPY_ERROR = re.compile(r"^(?P<file>[^:]+\.py):(?P<line>\d+): error: (?P<message>.*)$")

Lines = dict[tuple[str, int], str]

pytestmark = pytest.mark.timeout(300)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode in (0, 1), f"{arguments[0]} did not run:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def mypy_errors() -> Lines:
    # What a user sees: strict, and without the project's own settings.
    output = run("mypy", "--strict", "--config-file=", "--cache-dir=.cache/mypy-snippets", *map(str, paths()))
    assert f"(checked {len(FILES)} source file" in output
    found = filter(None, map(MYPY_ERROR.match, output.splitlines()))
    return {(Path(match["file"]).name, int(match["line"])): match["message"] for match in found}


def pyright_errors(folder: Path) -> Lines:
    # The project's own configuration leaves the snippets out, even when they are named: give pyright another.
    for path in paths():
        shutil.copy(path, folder)
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}))
    output = run("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(config))
    report = json.loads(output)
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    found = [entry for entry in report["generalDiagnostics"] if entry["severity"] == "error"]
    return {(Path(entry["file"]).name, entry["range"]["start"]["line"] + 1): entry["message"] for entry in found}


def paths() -> list[Path]:
    return [SNIPPETS / name for name in FILES]


def expected_lines(checker: str) -> set[tuple[str, int]]:
    lines = ((path.name, at, text) for path in paths() for at, text in enumerate(path.read_text().splitlines(), 1))
    marked = ((name, at, EXPECTED.search(text)) for name, at, text in lines)
    return {(name, at) for name, at, mark in marked if mark and mark[1] in (None, checker)}


def differences(checker: str, errors: Lines) -> list[str]:
    """Where a checker and the comments disagree; empty when all is well."""
    expected = expected_lines(checker)
    accepted = [f"{name}:{line}: accepted, but is wrong" for name, line in expected - errors.keys()]
    refused = [f"{name}:{line}: {text}" for (name, line), text in errors.items() if (name, line) not in expected]
    return sorted(accepted + refused)


def test_there_are_right_and_wrong_programs() -> None:
    assert FILES
    assert len(expected_lines("mypy")) >= 10
    assert len(expected_lines("pyright")) >= 10


def test_mypy_refuses_the_wrong_programs_and_no_others() -> None:
    assert differences("mypy", mypy_errors()) == []


def test_pyright_refuses_the_wrong_programs_and_no_others(tmp_path: Path) -> None:
    assert differences("pyright", pyright_errors(tmp_path)) == []


def test_a_disagreement_is_reported() -> None:
    right = expected_lines("mypy")
    errors = dict.fromkeys(right, "refused")
    assert differences("mypy", errors) == []
    missed = errors.popitem()[0]
    errors["job_types.py", 1] = "surprise"
    assert differences("mypy", errors) == sorted(
        [f"{missed[0]}:{missed[1]}: accepted, but is wrong", "job_types.py:1: surprise"]
    )
