"""What the documents tell to type: each command is one of the command line, each block of Python is Python."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import textwrap
from collections.abc import Iterator

import pytest

from queuert.cli import build_parser
from scripts.check_docs import ROOT, documents

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^ {0,4}|`)(queuert [a-z][^`#\n]*)", re.MULTILINE)
PLACEHOLDERS = {" ...": "", "[--cascade]": "--cascade"}


def commands() -> Iterator[tuple[str, str]]:
    for document in documents(ROOT):
        for command in COMMAND.findall(document.read_text(encoding="utf-8")):
            for shown, meant in PLACEHOLDERS.items():
                command = command.replace(shown, meant)
            yield document.name, command.strip()


def snippets() -> Iterator[tuple[str, str]]:
    for document in documents(ROOT):
        for language, block in FENCED.findall(document.read_text(encoding="utf-8")):
            if language == "python":
                yield document.name, textwrap.dedent(block)


COMMANDS = sorted(set(commands()))
SNIPPETS = list(snippets())


def is_part_of_one(words: list[str]) -> bool:
    """Whether the parser knows these words, though some that it needs do not follow."""
    parser = build_parser()
    for word in words:
        choices = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})
        if word not in choices:
            return False
        parser = choices[word]
    return True


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_command_is_understood(document: str, command: str) -> None:
    """It parses as it is written, or names a command and its action and nothing else."""
    _, *words = shlex.split(command)
    if not is_part_of_one(words):
        build_parser().parse_args(words)


@pytest.mark.parametrize(("document", "snippet"), SNIPPETS, ids=[document for document, _ in SNIPPETS])
def test_a_snippet_is_python_and_its_imports_are_there(document: str, snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "queuert":
            module = importlib.import_module(str(node.module))
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_there_are_some() -> None:
    assert len(COMMANDS) > 30
    assert len(SNIPPETS) > 20
