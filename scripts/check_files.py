"""Check that no committed file names a package index, a machine's directory, or holds what looks like a secret.

Requirements are pinned by their hashes, which are the same wherever a package comes from; the addresses of an index
are the business of the machine that installs.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Written in pieces, so that this file passes its own check.
FORBIDDEN = {
    "the address of a package index": r"pypi\.{0}org|python{0}hosted\.org|registry\.npm{0}js|/sim{0}ple/?\b(?=\s|$|\")",
    "an option that names a package index": r"--(?:extra-)?index{0}-url|--find{0}-links",
    "a directory of somebody's machine": r"(?<![\w.])/(?:ro{0}ot|ho{0}me/\w+|Us{0}ers/\w+|wo{0}rk)/\w",
    "a line of a merge that was not finished": r"^(?:<<<{0}<<<<|>>>{0}>>>>) ",
    "a private key": r"BEGIN (?:\w+ )?PRIV{0}ATE KEY",
}
PATTERNS = {what: re.compile(pattern.replace("{0}", "")) for what, pattern in FORBIDDEN.items()}
FORBIDDEN_FILES = ("uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock", "alembic/__init__.py")


def committed_files(root: Path) -> list[str]:
    """The files that git tracks, and those that it would at the next `git add`; none outside a repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def problems_of(name: str, text: str) -> Iterator[str]:
    """What a file must not hold, with the lines where it does."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in PATTERNS.items():
            if pattern.search(line):
                yield f"{name}:{number}: {what}"


def main() -> int:
    """Check the tree, report, and return the exit status."""
    names = committed_files(ROOT)
    problems = [f"{name}: must not be committed" for name in names if name in FORBIDDEN_FILES]
    for name in names:
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        problems += problems_of(name, text)
    for problem in problems:
        print(f"check_files: {problem}", file=sys.stderr)
    if not problems:
        print(f"check_files: {len(names)} files: passed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
