"""The report: from rows to findings to Markdown, without a database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from queuert.demo.job_types import Report

_LONGEST_LIST = 10


@dataclass(frozen=True)
class Module:
    """A file and what it measures."""

    name: str
    lines: int
    size: int
    symbols: int


@dataclass(frozen=True)
class Library:
    """All that was indexed.

    Attributes:
        modules: the files.
        imports: importing module, imported name, and whether that happens when the module is loaded.
        unreadable: the files that are not Python of this version, with the reason.
    """

    modules: Sequence[Module]
    imports: Sequence[tuple[str, str, bool]]
    unreadable: Mapping[str, str]

    @cached_property
    def importers(self) -> Counter[str]:
        """How many modules import each module, of this library or not."""
        known = {module.name for module in self.modules}
        pairs = {(source, resolve(target, known)) for source, target, _ in self.imports}
        return Counter(target for source, target in pairs if source != target)

    @cached_property
    def cycles(self) -> list[list[str]]:
        """The groups of modules that import each other, at the time when they are loaded; the largest first."""
        known = {module.name for module in self.modules}
        graph: dict[str, set[str]] = defaultdict(set)
        for source, target, at_top in self.imports:
            resolved = resolve(target, known)
            if at_top and resolved in known:
                graph[source].add(resolved)
        groups = [sorted(group) for group in strongly_connected(graph) if len(group) > 1]
        return sorted(groups, key=lambda group: (-len(group), group))


def resolve(target: str, known: set[str]) -> str:
    """The module that an imported name is, or is in; of a stranger, its first part."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in known:
            return name
    return parts[0]


def strongly_connected(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan's algorithm, on a stack of our own: chains can be long)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: dict[str, None] = {}
    groups: list[list[str]] = []

    def enter(node: str) -> tuple[str, Iterator[str]]:
        number[node] = lowest[node] = len(number)
        path[node] = None
        return node, iter(graph.get(node, ()))

    for root in graph:
        work = [enter(root)] if root not in number else []
        while work:
            node, children = work[-1]
            for child in children:
                if child not in number:
                    work.append(enter(child))
                    break
                if child in path:
                    lowest[node] = min(lowest[node], lowest[child])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    groups.append(_cut(path, node))
    return groups


def _cut(path: dict[str, None], node: str) -> list[str]:
    """Take a finished group off the end of the path."""
    group = []
    while node in path:
        group.append(path.popitem()[0])
    return group


def summary(library: Library, path: str) -> Report:
    """The findings in short."""
    most = ", ".join(f"{name} ({count})" for name, count in library.importers.most_common(5))
    biggest = ", ".join(f"{one.name} ({one.lines:,} lines)" for one in _top(library.modules)[:3])
    largest = f"; the largest has {len(library.cycles[0])} modules" if library.cycles else ""
    return Report(
        path=path,
        files=len(library.modules),
        lines=sum(module.lines for module in library.modules),
        symbols=sum(module.symbols for module in library.modules),
        imports=len(library.imports),
        unreadable=len(library.unreadable),
        cycles=len(library.cycles),
        text=f"most imported: {most}\nbiggest: {biggest}\nimport cycles: {len(library.cycles)}{largest}",
    )


def render(library: Library) -> str:
    """The whole report, as Markdown."""
    counts = summary(library, "")
    parts = [
        "# The standard library, indexed\n",
        f"{counts.files:,} files, {counts.lines:,} lines, {counts.symbols:,} symbols, {counts.imports:,} imports.\n",
        _table("Most imported", ("module", "importing modules"), library.importers.most_common(_LONGEST_LIST)),
        _table(
            "Biggest files",
            ("module", "lines", "symbols"),
            [(one.name, f"{one.lines:,}", one.symbols) for one in _top(library.modules)[:_LONGEST_LIST]],
        ),
        _list("Import cycles, when loaded", [" ".join(group) for group in library.cycles[:_LONGEST_LIST]]),
        _list("Not Python of this version", [f"{name}: {why}" for name, why in sorted(library.unreadable.items())]),
    ]
    return "\n".join(parts)


def _top(modules: Sequence[Module]) -> list[Module]:
    return sorted(modules, key=lambda module: (-module.lines, module.name))


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    body = "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)
    return f"## {title}\n\n{body}\n"


def _list(title: str, items: Sequence[str]) -> str:
    body = "\n".join(f"- {' '.join(item.split())}" for item in items) or "none"
    return f"## {title}\n\n{body}\n"
