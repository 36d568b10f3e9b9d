"""Which environment a target of the Makefile uses: one for each version of Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FAKE_UV = f"""#!{sys.executable}
import pathlib, sys
if sys.argv[1] == "venv":
    python, directory = sys.argv[sys.argv.index("--python") + 1], pathlib.Path(sys.argv[-1])
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(python)
"""
"""Makes a directory with a link to the interpreter, and installs nothing."""


class Checkout:
    """A directory with what the Makefile reads, and a PATH with interpreters that do nothing but say their version."""

    def __init__(self, path: Path) -> None:
        self.root, self.bin = path / "root", path / "bin"
        self.bin.mkdir()
        shutil.copytree(ROOT / "requirements", self.root / "requirements")
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        for tool in ("make", "sh", "cat", "dirname", "printf"):
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.add("uv", FAKE_UV)

    def add(self, name: str, text: str) -> str:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def python(self, name: str, version: str) -> str:
        """An interpreter that runs what it is given with another version."""
        major, minor = version.split(".")
        return self.add(
            name,
            f"#!{sys.executable}\nimport sys\nsys.version_info = ({major}, {minor}, 0)\n"
            f"sys.executable = {str(self.bin / name)!r}\nexec(sys.argv[2])\n",
        )

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}
        return subprocess.run(
            [str(self.bin / "make"), *arguments],
            capture_output=True,
            text=True,
            cwd=self.root,
            check=False,
            env={"PATH": str(self.bin), **kept, **environment},
        )

    def environment(self, *arguments: str, **environment: str) -> str:
        """The interpreter that is said to be ready."""
        done = self.make("environment", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_a_python_it_is_the_one_that_was_found(checkout: Checkout) -> None:
    found = checkout.python("python3.12", "3.12")
    assert checkout.environment() == "ready: .venv/bin/python"
    assert (checkout.root / ".venv/bin/python").readlink() == Path(found)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_python_of_another_version_has_an_environment_of_its_own(checkout: Checkout, how: str) -> None:
    checkout.python("python3.12", "3.12")
    other = checkout.python("other", "3.13")
    assert checkout.environment() == "ready: .venv/bin/python"
    made = checkout.environment(f"PYTHON={other}") if how == "argument" else checkout.environment(PYTHON=other)
    assert made == "ready: .venv-3.13/bin/python"
    assert (checkout.root / ".venv-3.13/bin/python").readlink() == Path(other)
    assert (checkout.root / ".venv/bin/python").readlink() != Path(other)


def test_a_python_of_the_same_version_has_none(checkout: Checkout) -> None:
    checkout.python("python3.12", "3.12")
    other = checkout.python("other", "3.12")
    assert checkout.environment(f"PYTHON={other}") == "ready: .venv/bin/python"
    assert not list(checkout.root.glob(".venv-*"))


def test_what_counts_is_the_version_of_the_environment_that_is_there(checkout: Checkout) -> None:
    """Not of what would be found today: else tests run on another version than the one that was asked for."""
    old = checkout.python("python3.11", "3.11")
    assert checkout.environment() == "ready: .venv/bin/python"
    new = checkout.python("python3.13", "3.13")
    assert checkout.environment(f"PYTHON={new}") == "ready: .venv-3.13/bin/python"
    assert checkout.environment(f"PYTHON={old}") == "ready: .venv/bin/python"


def test_where_no_python_is_found_the_one_that_is_given_makes_the_first_environment(checkout: Checkout) -> None:
    given = checkout.python("other", "3.13")
    assert checkout.environment(f"PYTHON={given}") == "ready: .venv/bin/python"
    assert checkout.environment(f"PYTHON={given}") == "ready: .venv/bin/python"


@pytest.mark.parametrize(
    "target",
    ["test", "test-all", "test-steady", "check", "check-next", "bench", "docs", "demo", "audit", "sbom", "format"],
)
def test_each_target_uses_the_environment_of_the_python(checkout: Checkout, target: str) -> None:
    checkout.python("python3.12", "3.12")
    given = checkout.python("other", "3.13")
    done = checkout.make("--dry-run", target, f"PYTHON={given}")
    assert done.returncode == 0, done.stderr
    used = {word.partition("/")[0] for word in done.stdout.replace('"', " ").split() if word.startswith(".venv")}
    assert used
    assert all(name.endswith("-3.13") for name in used), done.stdout


@pytest.mark.parametrize("target", ["environment", "test", "help"])
@pytest.mark.parametrize("version", ["none", "fails", "3.10", ""])
def test_a_python_that_cannot_be_used_is_refused(checkout: Checkout, version: str, target: str) -> None:
    checkout.python("python3.12", "3.12")
    given = str(checkout.bin / "other") if version else ""
    if version == "fails":
        checkout.add("other", "#!/bin/sh\necho not installed >&2\nexit 127\n")
    elif version == "3.10":
        checkout.python("other", version)
    done = checkout.make(target, f"PYTHON={given}")
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert "PYTHON must be a Python 3.11 or newer that runs here" in line
    assert f"got '{given}'" in line
    assert not list(checkout.root.glob(".venv*"))
