"""The files of the standard library, found with and without Spark."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queuert.demo.driver import pause_for
from queuert.demo.files import find_paths, library, list_files, module_name
from queuert.spark.java import JavaMissingError, find_java


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small library, with what should be left out."""
    for name in ("a.py", "json/__init__.py", "json/_scan ner.py", "json/data.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n", encoding="utf-8")
    for name in ("site-packages", "test", "__pycache__", "empty"):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "left_out.py").write_text("", encoding="utf-8")
    return tmp_path


def test_modules_are_named_as_they_are_imported() -> None:
    root = Path("/lib")
    assert module_name(root / "os.py", root) == "os"
    assert module_name(root / "json/decoder.py", root) == "json.decoder"
    assert module_name(root / "json/__init__.py", root) == "json"


def test_paths_are_sorted_limited_and_the_librarys_own(tree: Path) -> None:
    names = [str(Path(path).relative_to(tree)) for path in find_paths(tree, None)]
    assert names == ["a.py", "json/__init__.py", "json/_scan ner.py"]
    assert len(find_paths(tree, 2)) == 2


def test_files_are_listed_with_size_and_digest(tree: Path) -> None:
    with list_files(tree, limit=None, spark=False) as listing:
        files = list(listing.files)
    assert listing.total == len(files) == 3
    content = b"# a.py\n"
    assert (files[0].size, files[0].digest) == (len(content), hashlib.sha256(content).hexdigest())


def test_the_running_interpreter_has_a_library() -> None:
    names = {module_name(Path(path), library()) for path in find_paths(library(), None)}
    assert {"json.decoder", "_collections_abc", "asyncio"} <= names
    assert not any(name.startswith(("test.", "site-packages")) for name in names)


def test_pauses_shrink_as_files_grow() -> None:
    pauses = [pause_for(files, 16) for files in (1, 100, 1_000, 1_000_000)]
    assert pauses == sorted(pauses, reverse=True)
    assert 0 < pauses[-1] < pauses[0] <= 0.25


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_spark_finds_the_same_files(tree: Path) -> None:
    try:
        java = find_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    code = (
        "import sys; from pathlib import Path; from queuert.demo.files import list_files\n"
        "with list_files(Path(sys.argv[1]), limit=None, spark=True) as listing:\n"
        "    print(listing.total, listing.reader)\n"
        "    for file in listing.files: print(file)\n"
    )
    spark = {"JAVA_HOME": str(java.path), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **spark}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tree)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    head, *found = done.stdout.splitlines()
    assert head.startswith("3 Spark ")
    with list_files(tree, limit=None, spark=False) as listing:
        assert found == [str(file) for file in listing.files]
