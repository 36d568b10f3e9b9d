"""What is shipped and committed, and what the Makefile says."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts import check_files
from scripts.run_pythons import promised

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["", "alembic"])
def test_the_directory_of_migrations_does_not_hide_the_library(where: str) -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
    for command in (["-c", "import alembic; print(alembic.__file__)"], ["-m", "alembic", "--version"]):
        output = run(sys.executable, *command, cwd=ROOT / where)
        assert "site-packages" in output or output.startswith("alembic")


def test_no_committed_file_names_an_index_or_a_machine() -> None:
    assert "passed" in run(sys.executable, "scripts/check_files.py")


@pytest.mark.parametrize(
    "line",
    [
        "--index" + "-url https://example.invalid",
        "https://py" + "pi.org/project/x",
        "see /ro" + "ot/notes",
        "/ho" + "me/somebody/x",
        "-----BEGIN PRIV" + "ATE KEY-----",
    ],
)
def test_finds_what_must_not_be_committed(line: str) -> None:
    assert list(check_files.problems_of("file", f"first\n{line}\n")) != []


def test_lets_the_rest_pass() -> None:
    text = "rpm at /work\nsrc/root/x and /var/lib/postgresql\nhttps://www.postgresql.org/docs/\n"
    assert list(check_files.problems_of("file", text)) == []


def test_every_requirement_is_pinned_by_hashes() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith((" ", "#"))]
        assert lines
        assert all("==" in line and line.endswith("\\") for line in lines), path.name


def test_the_make_targets_are_listed() -> None:
    output = run("make", "help", MAKEFLAGS="", MAKELEVEL="0")
    targets = "demo test test-all test-steady test-pythons check bench docs lock format clean"
    for target in targets.split():
        assert f"make {target} " in output
    assert output == run("make", MAKEFLAGS="", MAKELEVEL="0")


@pytest.mark.parametrize(
    ("arguments", "program"),
    [("", "scripts/run_tests.py"), ("-k stop", "scripts/run_tests.py"), ("tests/worker -k stop", "-m pytest")],
)
def test_paths_that_are_named_are_run_by_themselves(arguments: str, program: str) -> None:
    """Not once more with each of the parts."""
    output = run("make", "--dry-run", "test", f"ARGS={arguments}", MAKEFLAGS="", MAKELEVEL="0")
    [command] = [line for line in output.splitlines() if "QUEUERT_REQUIRE_SERVERS=1" in line]
    assert program in command
    assert command.endswith(f" {arguments}")


def test_make_says_what_is_missing(tmp_path: Path) -> None:
    """With nothing but a shell and make on the PATH."""
    for program in ("make", "sh", "cat", "echo", "dirname"):
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        [str(tmp_path / "make"), "environment"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode != 0
    assert "no Python 3.11 or newer" in done.stderr


def test_the_documents_name_the_versions_of_python_that_are_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *others, last = versions = promised()
    assert project["requires-python"] == f">={versions[0]}"
    assert f"Python {versions[0]} to {last}." in (ROOT / "README.md").read_text()
    assert f"Queuert runs on Python {', '.join(others)} and {last}." in (ROOT / "docs/guide.md").read_text()
    assert all(f" python{version} " in (ROOT / "Makefile").read_text() for version in versions)


def test_extras_are_complete() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["all"] == [f"queuert[{','.join(name for name in extras if name != 'all')}]"]


def test_the_distributions_carry_the_migrations(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path))
    [wheel], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"queuert/py.typed", "queuert/_migrations/env.py", "queuert/_migrations/script.py.mako"} <= set(names)
    assert any(name.startswith("queuert/_migrations/versions/") for name in names)
    assert any(name.endswith(".sql") for name in names)
    assert not any("__pycache__" in name or name.startswith(("tests/", "alembic/")) for name in names)
    with tarfile.open(source) as tar:
        paths = {name.partition("/")[2] for name in tar.getnames()}
    assert {"alembic/env.py", "tests/conftest.py", "Makefile", "LICENSE"} <= paths
