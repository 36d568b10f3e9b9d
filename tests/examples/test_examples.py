"""Every example is run as a reader would run it, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

LIMIT = 110.0
"""Seconds that a program may take: some seconds, or one for each of those that are run one after the other."""

ROOT = Path(__file__).resolve().parents[2]
NO_PROGRAMS = ("__init__", "delivery_keys", "delivery_peer", "media", "processes_work")
"""What other examples import."""
BY_ADDRESS = ("redis_", "guild_", "federation_", "spark_")
"""How the names of those begin that ``test_examples_by_address.py`` and ``tests/spark`` run."""
EXAMPLES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.py")
    if path.stem not in NO_PROGRAMS and not path.stem.startswith(BY_ADDRESS)
)


def source(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")


PRINTS = {
    "steps": """\
charging for 2 items
packing lamp
packing chair
the printer is off
printing the label
a packed lamp, a packed chair for 20
['charge', 'pack[lamp]', 'pack[chair]', 'courier', 'label']
""",
    "approvals": """\
paid 5
refused: too much
too late: the chain is completed
""",
    "attempt_middleware": """\
hello attempt 1: before, outer
hello attempt 1: before, inner
hello attempt 1: the handler, in a thread
hello attempt 1: after, inner
hello attempt 1: after, outer
hello, world
""",
    "attributes": """\
{'customer': 17}: tea, pens
{'tags': 'food'}: tea, cake
{'customer': 17, 'tags': ['food', 'urgent']}: tea
biller runs grocery_bill, 5 at once
bill for cake, bill for tea
0 workers are left
""",
    "cancellation": """\
the handler of now is told: cancelled
was cancelled: the account was closed
was cancelled: the account was closed
""",
    "asyncpg_connections": """\
rolled back: no job
committed: the job is ready
by the pool: the job is ready
""",
    "children": """\
page 1, page 2, page 3
2 runs, 1 of them only to wait
""",
    "client_middleware": """\
refused: no tenant
blue: started
blue: already there
green: started
""",
    "codecs": """\
not white b'\\x00\\x00\\x00'
21
['msgpack', 'zlib'] True
""",
    "debounce": """\
version 2: debounced True, the same chain True
version 3: debounced True, the same chain True
version 4: debounced True, the same chain True
version 5: debounced True, the same chain True
indexed version 5
""",
    "deduplication": """\
the second is the first: True
report for Ada
the first has closed, so the third is new: True
cached: report for Carl
report for Eve, repeated: False
report for Eve, repeated: True
""",
    "django_transactions": """\
something else went wrong
rolled back: no job
in the block nobody else sees the job
on_commit: the job is there, ready
the handler runs for Ada
welcomed Ada
""",
    "encryption": """\
re: with the old key
re: with the old key still
re: with the new key
['json', 'aes-gcm:2030-01']
['json', 'aes-gcm:2030-01']
['json', 'aes-gcm:2030-02']
""",
    "fan_out_and_join": "6 words\n",
    "limits": "8 done; at once for each: {'ada': 1, 'bob': 1}\n",
    "lifespan": """\
opened
bonjour, Ada
bonjour, Grace
closed, after Ada, Grace
""",
    "processes": """\
1000
the endless one has failed: timeout
""",
    "psycopg_connections": """\
refused, and the transaction goes on
before the commit: False
after it: True; rolled back: False
with the pool's connection: True
asynchronously: True
""",
    "quickstart": "https://cdn.example/200/cat.png\n",
    "recurring": """\
every-second
every-second
every-second paused
nightly goes on
""",
    "requests": """\
asked the shop for the price of a cat
42
42
failed: queuert.errors.Unrecoverable: nobody sells unicorns
kept for 600 seconds
updated
""",
    "retries_and_failures": """\
busy answered at attempt 2
flaky answered at attempt 3
failed: there is no such number
""",
    "sqlalchemy_in_complete": """\
order 7 is billed
the debtor of 7 is reminded
invoices: [(7, 1)]
""",
    "sqlalchemy_sessions": """\
rolled back: no order and no job
committed: the job is ready
2 orders, the job is ready
""",
    "with_your_transaction": "order 2 is billed with 42\n",
}


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, dsn: str) -> None:
    done = run("-m", f"examples.{name}", dsn=dsn)
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr


RUN_ALL = """
import os, runpy, sys
directory, *names = sys.argv[1:]
for name in names:
    os.environ["QUEUERT_URL"] = f"sqlite:///{directory}/{name}.db"
    runpy.run_module(f"examples.{name}", run_name="__main__")
"""


def test_without_a_server_and_again(tmp_path: Path) -> None:
    """Those that say so need none: in files, which is quicker, and all in one process."""
    names = [name for name in EXAMPLES if "embedded://" in source(name)]
    assert len(names) > 10
    done = run("-c", RUN_ALL, str(tmp_path), *names, dsn="")
    assert (done.stdout, done.returncode) == ("".join(PRINTS[name] for name in names), 0), done.stderr
    again = run("-c", RUN_ALL, str(tmp_path), *names, dsn="")
    assert again.returncode == 0, again.stderr


def test_they_can_share_a_database() -> None:
    """No job type of one is another one's, so that what one has left is not run by the next."""
    paths = (ROOT / "examples").glob("*.py")
    found = {(name, path.stem) for path in paths for name in re.findall(r'JobType\("([^"]+)"', source(path.stem))}
    types = Counter(name for name, _ in found)
    assert [name for name, programs in types.items() if programs > 1] == []


def test_the_quickstart_starts_a_postgres() -> None:
    done = run("-m", "examples.quickstart", dsn="embedded://")
    assert (done.stdout, done.returncode) == (PRINTS["quickstart"], 0), done.stderr


def test_the_tests_of_a_program(dsn: str) -> None:
    """The example that is a program with tests, run by pytest."""
    options = ("-q", "-p", "pytest_queuert", "-p", "no:randomly")
    done = run("-m", "pytest", *options, "examples/testing_your_jobs", dsn=dsn, QUEUERT_TEST_DSN=dsn)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_the_readme_example_is_the_quickstart() -> None:
    """What README shows is cut from the example, line by line, so that it cannot go stale."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in readme.split("```python\n")[1:]]
    real = {line.strip() for name in ("media", "quickstart") for line in source(name).splitlines()}
    shown = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(shown) > 10
    assert [line for line in shown if line.strip() not in real] == []


def test_every_example_is_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"]
    assert [name for name in names if f"]({name})" not in listed] == []


def run(*arguments: str, dsn: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QUEUERT_URL": dsn, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **more}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=LIMIT, check=False
    )
