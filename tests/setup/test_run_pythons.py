"""The run of the tests on each version of Python: which interpreters it takes, and what it says of each version."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from scripts import run_pythons
from scripts.run_pythons import Result, find, main, passed, promised, run

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A PATH of two directories and a pyenv with interpreters that do nothing but say a version, and a fake make."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.second, self.pyenv = path / "first", path / "second", path / "pyenv"
        self.log = path / "log"
        for directory in (self.first, self.second, self.pyenv):
            directory.mkdir()
        monkeypatch.setenv("PATH", f"{self.first}:{self.second}")
        monkeypatch.setenv("PYENV_ROOT", str(self.pyenv))

    def add(self, path: Path, script: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\n{script}\n")
        path.chmod(0o755)
        return path

    def python(self, directory: Path, version: str, says: str | None = None) -> Path:
        return self.add(directory / f"python{version}", f"echo {says or version}")

    def of_pyenv(self, name: str, says: str) -> Path:
        return self.add(self.pyenv / "versions" / name / "bin" / "python", f"echo {says}")

    def make(self, fails_on: str = "nothing") -> None:
        """Writes its arguments and what it knows of a make around it down; fails for one interpreter."""
        script = f'echo "$* [$MAKEFLAGS$MAKELEVEL]" >>{self.log}\ncase "$*" in *{fails_on}*) exit 2;; esac'
        self.add(self.first / "make", script)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_the_versions_are_those_of_the_classifiers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nclassifiers = ["Programming Language :: Python :: 3 :: Only",\n'
        '"Programming Language :: Python :: 3.9", "Programming Language :: Python :: 3.10", "Topic :: Database"]\n'
    )
    assert promised(tmp_path) == ["3.9", "3.10"]
    assert promised()[0] == "3.11"


def test_an_interpreter_of_the_path_comes_first(machine: Machine) -> None:
    machine.of_pyenv("3.12.9", "3.12")
    on_path = machine.python(machine.second, "3.12")
    assert find("3.12") == on_path
    assert find("3.13") is None


@pytest.mark.parametrize("script", ["exit 127", "echo 3.12; exit 1", "echo 3.11"])
def test_one_that_does_not_run_or_has_another_version_is_passed_over(machine: Machine, script: str) -> None:
    """As a shim of pyenv, which says that the version is not chosen."""
    machine.add(machine.first / "python3.12", script)
    assert find("3.12") is None
    behind = machine.python(machine.second, "3.12")
    assert find("3.12") == behind


def test_of_those_of_pyenv_it_is_the_newest_that_runs(machine: Machine) -> None:
    machine.of_pyenv("3.12.9", "3.12")
    newest = machine.of_pyenv("3.12.10", "3.12")
    machine.add(machine.pyenv / "versions" / "3.12.11" / "bin" / "python", "exit 1")
    machine.of_pyenv("3.12.12rc1", "3.12")
    machine.of_pyenv("3.1.20", "3.1")
    assert find("3.12") == newest


def test_pyenv_is_looked_for_at_its_usual_place(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYENV_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path))
    there = machine.add(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python", "echo 3.12")
    assert find("3.12") == there


def test_each_version_that_is_found_is_tested_also_after_one_that_failed(machine: Machine) -> None:
    first, third = machine.python(machine.first, "3.11"), machine.python(machine.second, "3.13")
    tested: list[Path] = []

    def test(path: Path) -> bool:
        tested.append(path)
        return path == third

    results = run(["3.11", "3.12", "3.13"], test)
    assert tested == [first, third]
    assert results == [Result("3.11", first), Result("3.12"), Result("3.13", third, passed=True)]
    assert not passed(results)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([Result("3.11", Path("a"), passed=True), Result("3.12", Path("b"), passed=True)], True),
        ([Result("3.11", Path("a"), passed=True), Result("3.12")], True),
        ([Result("3.11", Path("a"), passed=True), Result("3.12", Path("b"))], False),
        ([Result("3.11"), Result("3.12")], False),
    ],
    ids=["all passed", "one was not found", "one failed", "none was found"],
)
def test_a_run_fails_if_a_version_failed_or_none_was_found(results: list[Result], expected: bool) -> None:
    assert passed(results) is expected


def test_at_the_end_it_says_what_came_of_each(
    machine: Machine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the arguments of the command line, and without what a make around it was given."""
    monkeypatch.setattr(run_pythons, "promised", lambda: ["3.11", "3.12", "3.13"])
    monkeypatch.setenv("MAKEFLAGS", " -- PYTHON=python3 ARGS=other")
    monkeypatch.setenv("MAKELEVEL", "1")
    first, second = machine.python(machine.first, "3.11"), machine.python(machine.first, "3.12")
    machine.make(fails_on="python3.12")
    assert main(["-k", "a b"]) == 1
    assert machine.calls() == [f"test PYTHON={path} ARGS=-k 'a b' []" for path in (first, second)]
    assert capfd.readouterr().out.splitlines() == [
        f"pythons: 3.11: {first}",
        f"pythons: 3.12: {second}",
        "pythons: 3.11 passed",
        f"pythons: 3.12 failed: make test PYTHON={second}",
        "pythons: 3.13 not found: no python3.13 on the PATH or in pyenv runs; install one",
        "pythons: failed",
    ]


def test_it_passes_without_a_version_that_is_not_there(
    machine: Machine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pythons, "promised", lambda: ["3.11", "3.12"])
    machine.python(machine.first, "3.11")
    machine.make()
    assert main([]) == 0
    out = capfd.readouterr().out
    assert "3.12 not found" in out
    assert out.endswith("pythons: passed\n")


def test_an_interrupt_ends_the_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_pythons, "promised", lambda: ["3.11"])
    monkeypatch.setattr(run_pythons, "make_test", interrupted)
    machine.python(machine.first, "3.11")
    assert main([]) == 130


def test_this_interpreter_is_found_by_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / f"python{version}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(version) == tmp_path / f"python{version}"
