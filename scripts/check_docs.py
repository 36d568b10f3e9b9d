"""Check that every relative link in the documents leads to a file, and every anchor to a heading."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^( {0,3})(```+|~~~+).*?^ {0,3}\2\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def documents(root: Path) -> list[Path]:
    """The documents: at the root of the tree, and below docs/ and examples/."""
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as the usual viewers make them; a repeated one gets a number."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = 0
        while anchor in found:
            count += 1
            anchor = f"{base}-{count}"
        found.add(anchor)
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """The line and target of each relative link; links within code are text."""
    prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for target in LINK.findall(CODE.sub("", line)):
            if not ELSEWHERE.match(target):
                yield number, target


def problem_of(document: Path, target: str, root: Path) -> str | None:
    """What is wrong with a link, if anything is."""
    name, _, anchor = unquote(target).partition("#")
    base = root if name.startswith("/") else document.parent
    path = (base / name.lstrip("/")).resolve() if name else document
    if not path.is_relative_to(root):
        return f"{target} leads out of the repository"
    if not path.exists():
        return f"{target} leads nowhere"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
        return f"{target}: {path.name} has no such heading"
    return None


def check(root: Path) -> tuple[int, list[str]]:
    """How many links there are, and what is wrong with them."""
    count, problems = 0, []
    for document in documents(root):
        for number, target in links(document.read_text(encoding="utf-8")):
            count += 1
            problem = problem_of(document, target, root)
            if problem:
                problems.append(f"{document.relative_to(root)}:{number}: {problem}")
    return count, problems


def main() -> int:
    """Check the tree, report, and return the exit status."""
    count, problems = check(ROOT)
    for problem in problems:
        print(f"check_docs: {problem}", file=sys.stderr)
    if not problems:
        print(f"check_docs: {count} links: passed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
