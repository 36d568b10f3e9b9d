"""What the tests of the command line share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

APPLICATION = """
import asyncio
from pathlib import Path

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, PostgresState, Processors, RetryPolicy
from queuert.worker.health import UnhealthyError, check_health_file

shout = JobType("shout", input=str, output=str)
probe = JobType("probe", input=str, output=str)
job_types = JobTypes(shout, probe)

first = Processors(job_types)
second = Processors(job_types)


@first.handles(shout)
def run_shout(attempt):
    return attempt.input.upper()


@second.handles(probe)
async def run_probe(attempt):
    if attempt.input == "event loop":
        return type(asyncio.get_running_loop()).__module__
    try:
        return check_health_file(Path(attempt.input)).worker
    except UnhealthyError:
        return attempt.retry(after=0.02)


both = [first, second]
nothing = []
number = 7


def made():
    return both


endless = Processors(job_types, retry=RetryPolicy(max_attempts=1_000_000))


@endless.handles(probe)
def retry(attempt):
    return attempt.retry(after=0.0)


busy = [first, endless]


def ready():
    client = AsyncClient(PostgresState("dbname=nowhere"), job_types)
    return InProcessWorker(client, both, name="ready", concurrency=7)


def configured(url="dbname=nowhere", *, name="nobody"):
    return InProcessWorker(AsyncClient(PostgresState(url), job_types), both, name=f"made-for-{name}")


def addressed(url):
    return configured(url)


def demanding(url, engine):
    return configured(url)


def broken():
    raise LookupError("no such\\nsetting")
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current directory, which defines job types, processors and some mistakes."""
    name = "application_of_the_test"
    (tmp_path / f"{name}.py").write_text(APPLICATION, encoding="utf-8")
    (tmp_path / "fails_at_import.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    for module in (name, "fails_at_import"):
        sys.modules.pop(module, None)
