"""What the demo reads from a Python file."""

import pytest

from queuert.demo.job_types import Import, Symbol
from queuert.demo.source import UNREADABLE, inspect_source, line_count

SOURCE = b"""
import os.path, sys
from . import sibling
from ..other import thing as alias
from json import *
try:
    import fast
except ImportError:
    fast = None

class Shape:
    sides = 4
    def area(self):
        import late
        import os.path
        def inner(): ...
    async def draw(self): ...

def function(): ...
async def coroutine(): ...
"""


def test_symbols_are_classes_functions_and_methods() -> None:
    symbols, _ = inspect_source(SOURCE, "package.sub.module", is_package=False)
    assert symbols == [
        Symbol(kind="class", name="Shape", line=11),
        Symbol(kind="method", name="Shape.area", line=13),
        Symbol(kind="method", name="Shape.draw", line=17),
        Symbol(kind="function", name="function", line=19),
        Symbol(kind="coroutine", name="coroutine", line=20),
    ]


def test_imports_are_absolute_and_know_when_they_happen() -> None:
    _, imports = inspect_source(SOURCE, "package.sub.module", is_package=False)
    assert imports == [
        Import(target="os.path", at_top=True),
        Import(target="sys", at_top=True),
        Import(target="package.sub.sibling", at_top=True),
        Import(target="package.other.thing", at_top=True),
        Import(target="json", at_top=True),
        Import(target="fast", at_top=True),
        Import(target="late", at_top=False),
    ]


def test_relative_imports_of_a_package_begin_in_itself() -> None:
    _, imports = inspect_source(b"from .decoder import Decoder\nfrom . import x", "json", is_package=True)
    assert [one.target for one in imports] == ["json.decoder.Decoder", "json.x"]


@pytest.mark.parametrize(
    "content", [b"print 'two'", b"def f(:", b"a\0b", b"# coding: nonsense\n", b"\xff\xfe", b"(" * 5000 + b")" * 5000]
)
def test_what_is_not_python_is_refused_in_a_known_way(content: bytes) -> None:
    with pytest.raises(UNREADABLE):
        inspect_source(content, "bad", is_package=False)


@pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3)])
def test_lines(content: bytes, lines: int) -> None:
    assert line_count(content) == lines
