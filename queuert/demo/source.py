"""What is in a Python file, by its syntax tree."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator

from queuert.demo.job_types import Import, Symbol

UNREADABLE = (SyntaxError, ValueError, RecursionError)
"""What the parser raises for a file that is not Python of this version: the syntax, NUL bytes, nesting."""

# CPython's parser counts its recursion in a variable that all threads share: two at once, and one of them may raise
# "AST constructor recursion depth mismatch".
_one_at_a_time = threading.Lock()

_KINDS = {ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "coroutine"}


def inspect_source(content: bytes, module: str, *, is_package: bool) -> tuple[list[Symbol], list[Import]]:
    """The symbols of a file and the names that it imports, each once.

    Raises:
        SyntaxError, ValueError, RecursionError: the file cannot be parsed.
    """
    with _one_at_a_time:
        tree = ast.parse(content)
    return list(_symbols(tree)), _imports(tree, module, is_package=is_package)


def line_count(content: bytes) -> int:
    """The lines of a file."""
    return content.count(b"\n") + (not content.endswith(b"\n") if content else 0)


def _symbols(tree: ast.Module) -> Iterator[Symbol]:
    """Classes, functions and methods; what is inside of functions is their own affair."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Symbol(kind=_KINDS[type(node)], name=node.name, line=node.lineno)
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield Symbol(kind="method", name=f"{node.name}.{method.name}", line=method.lineno)


def _imports(tree: ast.Module, module: str, *, is_package: bool) -> list[Import]:
    found: dict[str, bool] = {}
    for node, at_top in _nodes(tree, at_top=True):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node, module, is_package=is_package):
                found[target] = found.get(target, False) or at_top
    return [Import(target=target, at_top=at_top) for target, at_top in found.items()]


def _nodes(parent: ast.AST, *, at_top: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All statements, with whether they run when the module is loaded."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.expr):
            continue
        yield node, at_top
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _nodes(node, at_top=at_top and not in_function)


def _targets(node: ast.Import | ast.ImportFrom, module: str, *, is_package: bool) -> list[str]:
    """The names with dots; of ``from a import b`` it is ``a.b``, which may be a module or something in ``a``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module.split(".") if is_package else module.split(".")[:-1]
        above = package[: len(package) - node.level + 1]
        base = ".".join([*above, *([base] if base else [])])
    return [base if alias.name == "*" else ".".join(filter(None, (base, alias.name))) for alias in node.names]
