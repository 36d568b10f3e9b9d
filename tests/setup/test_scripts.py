"""The project's own checks: they find what they are for."""

from pathlib import Path

import pytest

from scripts import check_docs, check_sizes, unasync

SOURCE = '''
import asyncio
from contextlib import asynccontextmanager

from queuert.state.async_store import AsyncStore


class AsyncThing:
    """The asynchronous thing; nobody awaits it. It knows async_helper."""

    async def __aenter__(self) -> "AsyncThing":
        async with self.store as store:
            await store.__aenter__()
        return self

    async def aclose(self) -> None:
        async for _ in async_pauses():
            await self.store.aclose()
'''

TWIN = '''
import asyncio
from contextlib import contextmanager

from queuert.state.sync_store import Store


class Thing:
    """The synchronous thing; nobody awaits it. It knows sync_helper."""

    def __enter__(self) -> "Thing":
        with self.store as store:
            store.__enter__()
        return self

    def close(self) -> None:
        for _ in sync_pauses():
            self.store.close()
'''


def test_a_twin_is_its_source_without_the_waiting() -> None:
    assert unasync.to_sync(SOURCE, set()) == TWIN


def test_unused_substitutions_are_found() -> None:
    used: set[str] = set()
    unasync.to_sync("await nothing", used)
    assert used == {"await "}
    assert "await " not in unasync.unused(used)
    assert "async def" in unasync.unused(used)


def test_drift_is_found_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasync, "ROOT", tmp_path)
    monkeypatch.setattr(unasync, "PAIRS", {"async_thing.py": "sync_thing.py", "absent.py": "nothing.py"})
    (tmp_path / "async_thing.py").write_text("async def thing(a,\n b): ...\n")
    assert unasync.run(check=True) == 1
    assert unasync.run(check=False) == 0
    assert (tmp_path / "sync_thing.py").read_text() == (
        "# Generated from async_thing.py, do not edit: see scripts/unasync.py\ndef thing(a, b): ...\n"
    )
    assert unasync.run(check=True) == 0
    (tmp_path / "sync_thing.py").write_text("def thing(): ...\n")
    assert unasync.run(check=True) == 1


def function(name: str, lines: int) -> str:
    return "\n".join([f"def {name}():", '    """Two', '    lines."""', *["    pass"] * (lines - 1), ""])


def test_the_lines_of_a_function_are_counted_without_its_docstring() -> None:
    text = function("short", 3) + "class C:\n    async def method(self):\n        pass\n"
    sizes = {size.where: size.lines for size in check_sizes.function_sizes("m.py", text)}
    assert sizes == {"m.py:1 short": 3, "m.py:7 method": 2}


def test_the_lines_of_a_module_are_counted_without_docstrings() -> None:
    """Of the module, its functions, classes and attributes; a text that is used is code."""
    text = (
        '"""Of the\nmodule."""\n\nLIMIT = 3\n"""Of an attribute."""\n\n' + function("short", 3) + 'print("""a\nb""")\n'
    )
    assert check_sizes.module_size("m.py", text) == check_sizes.Size(8, "m.py")


@pytest.mark.parametrize(
    ("functions", "modules", "expected"),
    [
        ([11, 11, 11], [1_000], 0),
        ([12, 12, 12], [999], 1),
        ([5, 5, 5], [1_001], 1),
        ([5] * 19 + [60], [10], 0),
        ([5] * 18 + [60, 70], [10], 3),
        ([], [], 0),
    ],
)
def test_what_is_too_long_is_reported(functions: list[int], modules: list[int], expected: int) -> None:
    problems = check_sizes.problems_of(
        [check_sizes.Size(lines, "function") for lines in functions],
        [check_sizes.Size(lines, "module") for lines in modules],
    )
    assert len(problems) == expected


def test_generated_modules_are_not_measured(tmp_path: Path) -> None:
    package = tmp_path / "queuert"
    package.mkdir()
    (package / "twin.py").write_text(f"{check_sizes.GENERATED}source.py\n")
    (package / "own.py").write_text("pass\n")
    assert [path for path, _ in check_sizes.modules(tmp_path)] == ["queuert/own.py"]
    assert unasync.HEADER.startswith(check_sizes.GENERATED)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A `Page`, and more!\n\n[up](../README.md) [self](#a-page-and-more)\n")
    (tmp_path / "README.md").write_text(
        "[page](docs/page.md#a-page-and-more) [web](https://example.com) ![no](docs/no.png)\n"
        "`[code](nowhere.md)` [bad](docs/page.md#nothing) [out](../../x.md)\n"
        "```\n[fenced](nowhere.md)\n```\n"
    )
    count, problems = check_docs.check(tmp_path)
    assert count == 6
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "2"]
