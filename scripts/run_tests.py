"""Run the tests of a size in their parts; then run those that failed once more, alone.

The quick size has an order that is the same each time; `--all` runs everything, in an order that is new each time;
`--failed` runs what failed last; `--steady` runs the quick size again and again beside busy processes, and counts what
fails.

A test that fails again has failed. One that passes then is *unsteady*: it is named at the end, and what it printed both
times is kept in `.cache/unsteady/`. The run fails if a test has failed, or if four are unsteady. `docs/design/tests.md`
says why.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.sizes import AWHILE, SLOW_FILE, function_of  # noqa: E402  (the directory must be on the path first)

MOST_UNSTEADY = 3
"""Unsteady tests with which a run passes."""

MOST_AGAIN = 30
"""Failed tests that are run again. With more of them something is broken, and need not be told twice."""

AGAIN = ("-n", "1", f"--max-worker-restart={MOST_AGAIN}", "--record-passed")
"""One process, which is replaced if a test ends it."""

ORDER = "--randomly-seed="
SEED = "20261126"
"""The order of the quick size, unless the arguments have another. pytest prints it at the head of each part."""

ALL = ("--size=all", "--both-modes")
QUICK = ("--size=quick",)

SLOWEST = 10
"""The tests that took longest are named at the end: so many."""

PYTEST = (sys.executable, "-m", "pytest")
_NO_TESTS = 5
"""What pytest returns where the given arguments select no test of a part."""


ROUNDS = 5
BUSY = 4
"""How often `--steady` runs the quick size, and beside how many processes that do nothing but keep a processor busy."""

_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Part:
    """Tests that run together: those of its paths, or, without any, those that no other part has."""

    name: str
    arguments: tuple[str, ...]
    paths: tuple[str, ...] = ()

    def narrowed(self, given: Sequence[str]) -> Part | None:
        """Return the part with only those of its tests that the given paths and names have, or None if they have none.

        A path may be a directory that has tests of several parts.
        """
        if self.paths:
            chosen = [one for one in given if any(_is_in(one, own) for own in self.paths)]
            chosen += [own for own in self.paths if any(_is_in(own, one) and own != one for one in given)]
        else:
            chosen = [one for one in given if not any(_is_in(one, other) for other in APART)]
        return replace(self, paths=tuple(chosen)) if chosen else None


def _is_in(name: str, path: str) -> bool:
    """Whether a test, file or directory is in a file or directory, or is that itself."""
    return f"{name.partition('::')[0]}/".startswith(f"{path}/")


# Many tests wait, for servers, leases or processes: four processes keep two cores busy. Each starts servers of its own.
# Apart from them come those of Spark, a session a process and a file's tests in one of them, and those of chaos, which
# start a dozen processes each and wait for most of their time. Those in a browser share one, and one database: they run
# beside those of Spark. So do those of plans: each file fills databases of a hundred thousand rows, once if one process
# has the file.
PLANS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/state").glob("test_*plans.py"))
BY_FILE = ("tests/spark", "tests/browser", "tests/state/test_fan_in.py", *PLANS)
APART = (*BY_FILE, "tests/chaos")
PARTS = (
    Part("main", ("-n", "4", "--dist", "worksteal", *(f"--ignore={path}" for path in APART))),
    Part("Spark, browser and plans", ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"), BY_FILE),
    Part("chaos", ("-n", "4", "--dist", "worksteal"), ("tests/chaos",)),
)


@dataclass
class Outcome:
    """The result of a run."""

    failed: list[str] = field(default_factory=list)
    unsteady: dict[str, Path] = field(default_factory=dict)
    """Tests, with the files that have the output of both runs."""
    broken: list[str] = field(default_factory=list)
    """Why a part, or what failed in it, could not be run to its end."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped for each reason."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test took."""

    @property
    def passed(self) -> bool:
        """Whether the run counts as passed."""
        return not self.failed and not self.broken and len(self.unsteady) <= MOST_UNSTEADY

    def lines(self) -> list[str]:
        """What to print at the end: what matters most comes last."""
        slowest = sorted(self.seconds.items(), key=lambda one: -one[1])[:SLOWEST]
        lines = ["tests: the slowest, in seconds:", *(f"{seconds:8.1f}  {name}" for name, seconds in slowest)]
        if self.skipped:
            lines.append(f"tests: {self.skipped.total()} skipped:")
            lines += [f"{count:8}  {reason}" for reason, count in self.skipped.most_common()]
        lines += [f"tests: {why}" for why in self.broken]
        if self.failed:
            lines += [f"tests: {len(self.failed)} failed:", *(f"  {name}" for name in sorted(self.failed))]
        if self.unsteady:
            lines.append(
                f"tests: {len(self.unsteady)} unsteady: failed, and passed when run again alone "
                f"(the run fails with more than {MOST_UNSTEADY})"
            )
            lines += [f"  {name}\n    see {path}" for name, path in sorted(self.unsteady.items())]
        return [*lines, f"tests: {'passed' if self.passed else 'failed'}"]


class Run:
    """One run in a directory: records and outputs are kept in its `.cache/`."""

    def __init__(self, root: Path, pytest: Sequence[str] = PYTEST) -> None:
        self._root = root
        self._pytest = pytest
        self._cache = root / ".cache"
        self._last = self._cache / "tests" / "failed.txt"
        self._outcome = Outcome()

    def last_failed(self) -> list[str]:
        """Return the tests that failed in the last run, whatever they did alone."""
        return self._last.read_text(encoding="utf-8").splitlines() if self._last.exists() else []

    def run(self, parts: Sequence[Part], arguments: Sequence[str]) -> Outcome:
        """Run each part, also after one that failed; then what failed."""
        failed: dict[str, str] = {}
        codes: set[int] = set()
        for part in parts:
            code, failed_here = self._run_part(part, arguments)
            codes.add(code)
            failed |= failed_here
        if codes <= {_NO_TESTS}:
            self._outcome.broken.append(f"the arguments select no test: {shlex.join(arguments)}")
        self._last.parent.mkdir(parents=True, exist_ok=True)
        self._last.write_text("".join(f"{name}\n" for name in failed), encoding="utf-8")
        if len(failed) > MOST_AGAIN:
            self._outcome.failed += failed
            print(f"tests: {len(failed)} failed: more than {MOST_AGAIN} are not run again", flush=True)
        elif failed:
            self._run_again(failed)
        return self._outcome

    def _run_part(self, part: Part, arguments: Sequence[str]) -> tuple[int, dict[str, str]]:
        """Run a part; return what pytest returned, and what failed, with its output."""
        code, record = self._call(part.name, [*part.arguments, *arguments, *part.paths])
        self._outcome.skipped.update(record.get("skipped", {}))
        self._outcome.seconds |= record.get("seconds", {})
        if code in (0, _NO_TESTS):
            return code, {}
        failed: dict[str, str] = record.get("failed", {})
        for path in record.get("not_collected", ()):
            self._outcome.broken.append(f"{path} could not be collected")
        if code != 1 or not (failed or record.get("not_collected")):
            self._outcome.broken.append(f"the part {part.name!r} did not run to its end: pytest returned {code}")
        return code, failed

    def _run_again(self, failed: dict[str, str]) -> None:
        print(f"tests: {len(failed)} failed, and are run again, alone", flush=True)
        _, record = self._call("again", [*AGAIN, *failed])
        passed: dict[str, str] = record.get("passed", {})
        for name, first in failed.items():
            # One whose process died has passed nowhere.
            if name in passed and name not in record["failed"]:
                self._outcome.unsteady[name] = self._keep(name, first, passed[name])
            else:
                self._outcome.failed.append(name)

    def _call(self, name: str, arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
        path = self._cache / "tests" / f"{name}.json"
        path.unlink(missing_ok=True)
        command = [*self._pytest, "--record", str(path), *arguments]
        code = subprocess.run(command, cwd=self._root, check=False).returncode
        return code, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _keep(self, name: str, first: str, second: str) -> Path:
        directory = self._cache / "unsteady"
        directory.mkdir(parents=True, exist_ok=True)
        readable = re.sub(r"\W+", "_", name.rpartition("::")[2])[:60]
        path = directory / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.txt"
        texts = (name, "=== among the others: failed ===", first, "=== alone: passed ===", second)
        path.write_text("\n".join(texts), encoding="utf-8")
        return path.relative_to(self._root)


def write_slow(seconds: dict[str, float], path: Path = SLOW_FILE) -> None:
    """Write which test functions take a while, as `tests/support/sizes.py` reads it."""
    functions: dict[str, list[float]] = defaultdict(list)
    for name, took in seconds.items():
        functions[function_of(name)].append(took)
    medians = {name: statistics.median(all_took) for name, all_took in sorted(functions.items())}
    lines = [f"{median:.2f} {name}\n" for name, median in medians.items() if median >= AWHILE]
    path.write_text("".join(lines), encoding="utf-8")


def split_paths(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths and names of tests among the arguments, and the others."""
    paths = [one for one in given if one.removeprefix("./").partition("/")[0] == "tests"]
    return [one.removeprefix("./").rstrip("/") for one in paths], [one for one in given if one not in paths]


def pytest_arguments(given: Sequence[str], *, everything: bool) -> list[str]:
    """Return what pytest gets in each part."""
    if everything:
        return [*ALL, *given]
    order = [] if any(one.startswith(ORDER) for one in given) else [ORDER + SEED]
    return [*QUICK, *order, *given]


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep processors busy. The processes end with this one, too."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def steady(run: Callable[[], Outcome], report: Path, *, rounds: int = ROUNDS, busy: int = BUSY) -> bool:
    """Run several times beside busy processes; write how often each test failed. Return whether none did.

    The report is written after each round, for one that ends the run early.
    """
    failed: Counter[str] = Counter()
    broken: list[str] = []
    with busy_processes(busy):
        for number in range(1, rounds + 1):
            outcome = run()
            failed.update([*outcome.failed, *outcome.unsteady])
            broken += outcome.broken
            lines = [*broken, *(f"{count} of {number}  {name}" for name, count in failed.most_common())]
            report.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            done = f"{number} of {rounds} rounds beside {busy} busy processes"
            print(f"tests: {len(failed)} failed in {done}: {report}", *lines, sep="\n  ", flush=True)
    return not (failed or broken)


def main() -> int:
    """Run a size, with the other arguments of the command line for each part."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--all", action="store_true", help="run everything, not the quick size")
    parser.add_argument(
        "--write-slow", action="store_true", help=f"then write {SLOW_FILE.name} anew, by what was measured"
    )
    parser.add_argument("--failed", action="store_true", help="run what failed in the last run")
    parser.add_argument("--steady", action="store_true", help="run the quick size beside busy processes, several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often --steady runs it (%(default)s)")
    options, given = parser.parse_known_args()
    if options.write_slow and not options.all:
        parser.error("--write-slow needs --all: only a run of everything measures everything")
    if options.write_slow and given:
        parser.error(
            f"--write-slow takes no other arguments, and was given {' '.join(given)}: they would leave tests out"
        )
    paths, others = split_paths(given)
    arguments = pytest_arguments(others, everything=options.all)
    if options.failed:
        paths = Run(ROOT).last_failed()
        if not paths:
            print("tests: none failed in the last run")
            return 0
        arguments = others
    parts = [part for one in PARTS if (part := one.narrowed(paths))] if paths else PARTS
    shutil.rmtree(ROOT / ".cache" / "unsteady", ignore_errors=True)
    try:
        if options.steady:
            report = ROOT / ".cache" / "steady.txt"
            return 0 if steady(lambda: Run(ROOT).run(parts, arguments), report, rounds=options.rounds) else 1
        outcome = Run(ROOT).run(parts, arguments)
    except KeyboardInterrupt:
        return 130
    if options.write_slow and not outcome.broken:
        write_slow(outcome.seconds)
    print("\n".join(outcome.lines()), flush=True)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
