"""Check that names and prose use the words of docs/glossary.md.

Each retired word has one that is used instead. Looked at are the identifiers of Python, SQL and Lua, and the prose of
comments, docstrings, messages and documents. `docs/glossary.md` itself names the retired words, and is left out.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("docs/glossary.md", "scripts/check_words.py", "tests/setup/test_check_words.py", "requirements/", "LICENSE")

# Parts of identifiers, between underscores or humps. Plurals count as well.
RETIRED_NAMES = {
    "colour": "mode, or sync and async",
    "hint": "notification",
    "announcement": "notification",
    "ending": "finish (the write) or outcome (what a handler returned)",
    "intervention": "management, or ChainUpdate",
    "outsider": "management",
    "recurrence": "schedule",
    "recurring": "schedule",
    "ticker": "schedule runner",
    "sweeper": "maintenance",
    "keeper": "renewer",
    "upkeep": "maintenance",
    "tended": "maintained",
    "retiring": "prune",
    "retired": "pruned",
    "unkept": "beyond retention",
    "doomed": "prune candidate",
    "readied": "due types",
    "patience": "timeout",
    "asked": "params, query, or the thing itself",
    "told": "emitted, reported, or the thing itself",
}
ALLOWED_NAMES = {"get_type_hints", "RecurringSchedule", "recurring", "test_recurring_schedules"}

# Phrases in prose, as regular expressions over lower-case text.
RETIRED_PROSE = {
    r"\bcolours?\b": "mode, or sync and async",
    r"\bhints?\b": "notification",
    r"\bendings?\b": "finish or outcome",
    r"\binterventions?\b": "management",
    r"\brecurrences?\b": "schedule",
    r"\btickers?\b": "schedule runner",
    r"\bsweepers?\b": "maintenance",
    r"\blease keepers?\b": "lease renewer",
    r"\bupkeep\b": "maintenance",
    r"\b(?:retires?|retired|retiring)\b": "prune",
    r"\bunkept\b": "beyond retention",
    r"\b(?:gives?|given|gave|giving|puts?|putting) back\b": "release",
    r"\b(?:puts?|putting) off\b": "retry later, or postpone",
    r"\bover (?:its|their|his) heads?\b": "from a client",
    r"\bwhat became of\b": "the result of",
    r"\bfor eyes only\b": "informational",
    r"\bstands? in for\b": "is the duplicate of",
    r"\bin vain\b": "without result",
    r"\bpatience\b": "timeout",
    r"\bmakes? no sense\b": "is not valid, or what it must be",
    r"\bfor who\b": "for callers that",
    r"\bwho is cancelled\b": "if the caller is cancelled",
    r"\b(?:is|are) held no more\b": "was released",
    r"\bhow-manieth\b": "number",
}


# Newer versions of Python take an f-string apart.
PROSE = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def files() -> list[str]:
    """What git tracks and this looks at."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    names = [name for name in done.stdout.split("\0") if name.endswith((".py", ".sql", ".lua", ".md"))]
    return [name for name in names if not name.startswith(LEFT_OUT) and (ROOT / name).is_file()]


def parts(identifier: str) -> Iterator[str]:
    """The words of an identifier, in the singular: ``_ChainHints`` is chain, hint."""
    for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier):
        lower = word.lower()
        yield lower
        yield lower.removesuffix("s")


def name_problem(identifier: str) -> str | None:
    """What to use instead of a word of the identifier."""
    if identifier in ALLOWED_NAMES:
        return None
    for part in parts(identifier):
        if part in RETIRED_NAMES:
            return f"{identifier}: instead of {part!r} use {RETIRED_NAMES[part]}"
    return None


def prose_problems(text: str) -> Iterator[str]:
    """What to write instead of phrases of a text. Code in backticks is no prose."""
    lower = re.sub(r"``[^`\n]*``|`[^`\n]*`", "", text).lower()
    for pattern, instead in RETIRED_PROSE.items():
        for match in re.finditer(pattern, lower):
            yield f"instead of {match[0]!r} write {instead}"


def python_problems(text: str) -> Iterator[tuple[int, str]]:
    """Problems of a module with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            if problem := name_problem(token.string):
                yield token.start[0], problem
        elif token.type in PROSE:
            for offset, line in enumerate(token.string.split("\n")):
                yield from ((token.start[0] + offset, problem) for problem in prose_problems(line))


def query_problems(text: str, comment: str = "--") -> Iterator[tuple[int, str]]:
    """Problems of SQL or Lua with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        code, _, prose = line.partition(comment)
        for identifier in re.findall(r"[A-Za-z_]\w*", code):
            if problem := name_problem(identifier):
                yield number, problem
        yield from ((number, problem) for problem in prose_problems(prose))


def document_problems(text: str) -> Iterator[tuple[int, str]]:
    """Problems of a document with their lines; code is for those who check code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield from ((number, problem) for problem in prose_problems(line))


def problems_of(name: str, text: str) -> list[str]:
    """The problems of one file, one line each."""
    look = python_problems if name.endswith(".py") else document_problems if name.endswith(".md") else query_problems
    return [f"{name}:{number}: {problem}" for number, problem in dict.fromkeys(look(text))]


def main() -> int:
    """Check the tree, report, and return the exit status. Arguments limit it to paths that begin so."""
    names = [name for name in files() if name.startswith(tuple(sys.argv[1:]) or "")]
    problems = [problem for name in names for problem in problems_of(name, (ROOT / name).read_text(encoding="utf-8"))]
    for problem in problems:
        print(f"check_words: {problem}", file=sys.stderr)
    if not problems:
        print(f"check_words: {len(names)} files: passed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
