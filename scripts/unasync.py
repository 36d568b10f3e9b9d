"""Write the synchronous twins of asynchronous modules, or check that they are up to date (`--check`).

The asynchronous module is the source. Its twin is the same text under the substitutions below, formatted. A source is
written so that these are enough: what differs in more than words goes to a module that both import.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# source -> twin. A pair whose source does not exist is passed over.
PAIRS = {
    "queuert/client/async_base.py": "queuert/client/sync_base.py",
    "queuert/client/async_bulk_operations.py": "queuert/client/sync_bulk_operations.py",
    "queuert/client/async_bulk_runner.py": "queuert/client/sync_bulk_runner.py",
    "queuert/client/async_cascades.py": "queuert/client/sync_cascades.py",
    "queuert/client/async_event_log.py": "queuert/client/sync_event_log.py",
    "queuert/client/async_explaining.py": "queuert/client/sync_explaining.py",
    "queuert/client/async_following.py": "queuert/client/sync_following.py",
    "queuert/client/async_listing.py": "queuert/client/sync_listing.py",
    "queuert/client/async_management.py": "queuert/client/sync_management.py",
    "queuert/client/async_schedules.py": "queuert/client/sync_schedules.py",
    "queuert/client/async_webhooks.py": "queuert/client/sync_webhooks.py",
    "queuert/client/async_chain.py": "queuert/client/sync_chain.py",
    "queuert/client/async_client.py": "queuert/client/sync_client.py",
    "queuert/client/async_waiting.py": "queuert/client/sync_waiting.py",
    "queuert/state/async_store.py": "queuert/state/sync_store.py",
    "queuert/state/postgres/async_base.py": "queuert/state/postgres/sync_base.py",
    "queuert/state/postgres/async_claiming.py": "queuert/state/postgres/sync_claiming.py",
    "queuert/state/postgres/async_event_log.py": "queuert/state/postgres/sync_event_log.py",
    "queuert/state/postgres/async_finishing.py": "queuert/state/postgres/sync_finishing.py",
    "queuert/state/postgres/async_listing.py": "queuert/state/postgres/sync_listing.py",
    "queuert/state/postgres/async_management.py": "queuert/state/postgres/sync_management.py",
    "queuert/state/postgres/async_schedules.py": "queuert/state/postgres/sync_schedules.py",
    "queuert/state/postgres/async_workers.py": "queuert/state/postgres/sync_workers.py",
    "queuert/state/postgres/async_retention.py": "queuert/state/postgres/sync_retention.py",
    "queuert/state/postgres/async_starting.py": "queuert/state/postgres/sync_starting.py",
    "queuert/state/postgres/async_statements.py": "queuert/state/postgres/sync_statements.py",
    "queuert/state/postgres/async_steps.py": "queuert/state/postgres/sync_steps.py",
    "queuert/state/postgres/async_webhooks.py": "queuert/state/postgres/sync_webhooks.py",
    "queuert/state/postgres/async_store.py": "queuert/state/postgres/sync_store.py",
    "queuert/state/postgres/async_transaction.py": "queuert/state/postgres/sync_transaction.py",
    "queuert/state/redis/async_event_log.py": "queuert/state/redis/sync_event_log.py",
    "queuert/state/redis/async_webhooks.py": "queuert/state/redis/sync_webhooks.py",
    "queuert/state/redis/async_management.py": "queuert/state/redis/sync_management.py",
    "queuert/state/redis/async_store.py": "queuert/state/redis/sync_store.py",
    "queuert/state/redis/async_transaction.py": "queuert/state/redis/sync_transaction.py",
    "queuert/state/async_unread.py": "queuert/state/sync_unread.py",
}

# Applied in this order, to whole words; the last two turn any other `AsyncName` into `Name` and `async_name` into
# `sync_name`. Each must be of use to some source: add what a new source needs, remove what none needs any more.
SUBSTITUTIONS = [
    (r"async def", "def"),
    (r"async with", "with"),
    (r"async for", "for"),
    (r"await ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"AbstractAsyncContextManager", "AbstractContextManager"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"StopAsyncIteration", "StopIteration"),
    (r"An asynchronous iterator", "An iterator"),
    (r"asynccontextmanager", "contextmanager"),
    (r"aclose", "close"),
    (r"aclosing", "closing"),
    (r"an async client", "a sync client"),
    (r"asynchronous", "synchronous"),
    (r"AsyncpgConnection", "Psycopg2Connection"),
    (r"Async([A-Z]\w*)", r"\1"),
    (r"async_(\w+)", r"sync_\1"),
]

HEADER = "# Generated from {source}, do not edit: see scripts/unasync.py\n"

_COMPILED = [
    (re.compile(rf"\b{pattern}" if pattern.endswith(" ") else rf"\b{pattern}\b"), replacement)
    for pattern, replacement in SUBSTITUTIONS
]


def to_sync(text: str, used: set[str]) -> str:
    """The text under the substitutions; the patterns that matched are added to `used`."""
    for (pattern, _), (compiled, replacement) in zip(SUBSTITUTIONS, _COMPILED, strict=True):
        text, count = compiled.subn(replacement, text)
        if count:
            used.add(pattern)
    return text


def formatted(text: str, twin: str) -> str:
    """The text as the linter sorts its imports and the formatter lays it out."""
    for command in (["check", "--quiet", "--fix-only", "--select", "I,F401"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--stdin-filename", twin, "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"unasync: ruff cannot read what {twin} would become:\n{done.stderr}")
        text = done.stdout
    return text


def generate(source: str, twin: str, used: set[str]) -> str:
    """What the twin of a source must hold."""
    text = (ROOT / source).read_text(encoding="utf-8")
    return formatted(HEADER.format(source=source) + to_sync(text, used), twin)


def unused(used: set[str]) -> list[str]:
    """The substitutions that nothing needed and that should be removed."""
    return [pattern for pattern, _ in SUBSTITUTIONS if pattern not in used]


def run(check: bool) -> int:
    """Write the twins, or compare them, and return the exit status."""
    used: set[str] = set()
    wanted = {twin: generate(source, twin, used) for source, twin in PAIRS.items() if (ROOT / source).exists()}
    problems: list[str] = []
    for twin, text in wanted.items():
        path = ROOT / twin
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            problems.append(f"{twin} is not what its source makes of it: run `make format`")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"unasync: wrote {twin}")
    # While some source is still to come, a substitution may be waiting for it.
    if len(wanted) == len(PAIRS):
        problems += [f"the substitution of {pattern!r} is used by no source: remove it" for pattern in unused(used)]
    for problem in problems:
        print(f"unasync: {problem}", file=sys.stderr)
    if not problems:
        print(f"unasync: {len(wanted)} modules are up to date")
    return 1 if problems else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail where something would change")
    return run(parser.parse_args().check)


if __name__ == "__main__":
    raise SystemExit(main())
