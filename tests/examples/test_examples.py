"""Every example is run as a reader would run it, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem not in ("__init__", "media"))

PRINTS = {
    "attempt_middleware": """\
greet attempt 1: before, outer
greet attempt 1: before, inner
greet attempt 1: the handler, in a thread
greet attempt 1: after, inner
greet attempt 1: after, outer
hello, world
""",
    "fan_out_and_join": "6 words\n",
    "quickstart": "https://cdn.example/200/cat.png\n",
    "retries_and_failures": """\
busy answered at attempt 2
flaky answered at attempt 3
failed: there is no such number
""",
    "with_your_transaction": "order 2 is billed with 42\n",
}


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, dsn: str) -> None:
    done = run("-m", f"examples.{name}", dsn=dsn)
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr


def test_the_readme_example_is_the_quickstart() -> None:
    """What README shows is cut from the example, line by line, so that it cannot go stale."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("```python\n")[2].partition("```")[0]
    sources = "".join(
        (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") for name in ("media", "quickstart")
    )
    real = {line.strip() for line in sources.splitlines()}
    missing = [line for line in shown.splitlines() if line.strip() and line.strip() not in real]
    assert shown.strip()
    assert not missing


def run(*arguments: str, dsn: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QUEUERT_URL": dsn, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60, check=False
    )
