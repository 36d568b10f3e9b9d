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
NO_PROGRAMS = ("__init__", "delivery_keys", "delivery_peer", "media", "processes_work", "serving")
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
    "phases": """\
phase_started download (1 of 3)
phase_completed download (1 of 3)
phase_started transcode (2 of 3)
retried ValueError: frame 50 is broken
phase_started transcode (2 of 3)
phase_completed transcode (2 of 3)
phase_started upload (3 of 3)
phase_completed upload (3 of 3)
https://videos.example/small-cat.mov
1. download: completed by attempt 1
2. transcode: completed by attempt 2
3. upload: completed by attempt 2
""",
    "approvals": """\
paid 5
refused: too much
too late: the chain is completed
published the news
too late: the chain is cancelled
refunded 12, approved by ada
approve: 0 overdue
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
    "recursive_children": """\
4 files
/: 4
  /docs: 1
  /src: 2
    /src/lib: 1
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
    "fastapi_orders": """\
202 {'id': 'parcel-7'}
504 urn:queuert:problem:still-open
200 {'label': 'parcel 7'}
404 chain 'parcel-8' does not exist: it was never committed, or it was deleted
""",
    "http_api": """\
201 started
200 the same chain: True
200 output: 3
422 input.words: Input should be a valid array
403 this request needs the action 'start', which its access lacks
403 this request needs the action 'start', which its access lacks
""",
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
    "two_servers": """\
-- Bob's server is down
ada: cannot deliver message-1 yet: its peer is down
ada: health check: its peer is down, and is looked at again every 0.3 s
-- Bob's server is up
bob: reads 'are you there?'
message-1 is acknowledged: accepted
bob: reads 'hello'
message-2 is acknowledged: accepted
-- a replay, a forged message, and one for somebody else
bob: has message-2 already, and does not handle it again
the same message again is accepted
bob: refuses a message that its sender has not signed
the forged message is answered with 401
bob: refuses a message that is not encrypted for it
the message for Ada is answered with 400
ada: health check: its peer is up again
-- what is left
ada: 1 x check_server completed, 2 x deliver_message completed
bob: 2 x receive_message completed
""",
    "upload_service": """\
the page has an EventSource
-- an upload; the disk is busy once, and the connection is cut when the job has failed once
  state
  started
  phase_started check
  phase_completed check: 10% of the job
  phase_started compress
  retried
  (cut, and connected again with the id of the last event)
  started
  phase_started compress
  phase_completed compress: 90% of the job
  phase_started publish
  phase_completed publish: 100% of the job
  completed
{'name': 'cat.bmp', 'status': 'completed', 'phases': {'check': 'completed', 'compress': 'completed', \
'publish': 'completed'}}
the result unpacks to 400,000 bytes
-- bad ones
{'name': 'nothing.bmp', 'status': 'failed', 'phases': {'check': 'failed', 'compress': 'pending', \
'publish': 'pending'}, 'error': 'the file is empty'}
too large: 413
the events of one with the token of another: 403
the queue without a token: 403
-- 2 days later
200 {'name': 'cat.bmp', 'status': 'completed', 'phases': {'check': 'completed', 'compress': 'completed', \
'publish': 'completed'}, 'deleted_soon': True}
-- 1 day later
404 {'error': 'there is no such upload'}
files that are left: []
""",
    "webhooks": """\
chain.completed: 400; of the chain that was started: True
chain.completed: 700; of the chain that was started: True
chain.failed: a book needs a title; of the chain that was started: True
a request that is signed with another secret is answered with 401
attempt 1 to deliver chain.failed: 204
attempt 1 to deliver chain.completed: 204
attempt 1 to deliver chain.completed: 204
""",
    "with_your_transaction": "order 2 is billed with 42\n",
}


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == EXAMPLES


@pytest.mark.quick
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
