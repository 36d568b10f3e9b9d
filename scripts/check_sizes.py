"""Check that functions and modules stay small enough to be read at a glance.

Of all functions together: a median under 12 lines, and 95 of 100 under 50. Of every module: at most 1,000 lines. The
lines of a function are those from its `def` to its end. Docstrings count for neither: to explain costs nothing.
Generated twins do not count twice.

The cap of a module is far above what most have. One that comes near it is split where it has two subjects, and not
otherwise: a reader who follows a job would rather scroll than open another file.
"""

import argparse
import ast
import math
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("queuert", "examples", "benchmarks")
GENERATED = "# Generated from "

MEDIAN_LINES = 12
NEARLY_ALL_LINES = 50
NEARLY_ALL = 0.95
MODULE_LINES = 1_000


@dataclass(frozen=True)
class Size:
    """The length in lines of one function or module."""

    lines: int
    where: str


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """The path and text of each module that counts."""
    for directory in DIRECTORIES:
        for path in sorted((root / directory).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "_migrations" not in path.parts and not text.startswith(GENERATED):
                yield str(path.relative_to(root)), text


def function_sizes(path: str, text: str) -> Iterator[Size]:
    """The size of each function of a module, methods and inner functions among them."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            lines = end - node.lineno + 1 - sum(map(_length, node.body[:1]))
            yield Size(lines, f"{path}:{node.lineno} {node.name}")


def module_size(path: str, text: str) -> Size:
    """The size of a module. Texts that stand for themselves are docstrings, also those of attributes."""
    docstrings = sum(_length(node) for node in ast.walk(ast.parse(text, path)) if isinstance(node, ast.Expr))
    return Size(len(text.splitlines()) - docstrings, path)


def _length(node: ast.stmt) -> int:
    """The lines of a docstring; 0 for any other statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return (node.end_lineno or node.lineno) - node.lineno + 1
    return 0


def percentile(values: list[int], share: float) -> int:
    """The value that this share of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def problems_of(functions: list[Size], modules: Iterable[Size]) -> list[str]:
    """What is too long, one line each, the longest first; empty when all is well."""
    problems = [f"{size.where}: {size.lines} lines, of {MODULE_LINES} at most" for size in _too_long(modules)]
    if not functions:
        return problems
    lines = [size.lines for size in functions]
    if statistics.median(lines) >= MEDIAN_LINES:
        problems.append(f"the median function has {statistics.median(lines)} lines, of fewer than {MEDIAN_LINES}")
    if percentile(lines, NEARLY_ALL) >= NEARLY_ALL_LINES:
        problems.append(f"of 100 functions, fewer than {NEARLY_ALL:.0%} are under {NEARLY_ALL_LINES} lines:")
        longest = sorted(functions, key=lambda size: -size.lines)
        problems += [f"  {size.where}: {size.lines} lines" for size in longest if size.lines >= NEARLY_ALL_LINES]
    return problems


def _too_long(modules: Iterable[Size]) -> list[Size]:
    return sorted((size for size in modules if size.lines > MODULE_LINES), key=lambda size: -size.lines)


def main() -> int:
    """Measure the tree, report, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the tree to measure")
    found = list(modules(parser.parse_args().root))
    functions = [size for path, text in found for size in function_sizes(path, text)]
    problems = problems_of(functions, [module_size(path, text) for path, text in found])
    for problem in problems:
        print(f"check_sizes: {problem}", file=sys.stderr)
    if functions and not problems:
        lines = [size.lines for size in functions]
        middle, nearly_all = statistics.median(lines), percentile(lines, NEARLY_ALL)
        print(f"check_sizes: {len(lines)} functions, median {middle:g} lines, 95% at most {nearly_all}: passed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
