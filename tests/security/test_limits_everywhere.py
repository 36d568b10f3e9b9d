"""Limits of what is stored hold to the byte, the level and the digit, in every store, for inputs, outputs and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuert import Client, JobStatus, JobType, JobTypes, PostgresState
from queuert.deduplication import Deduplicate
from queuert.errors import DefinitionError, InvalidIdentifierError, PayloadError
from queuert.notify.in_process import InProcessNotify
from queuert.state import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState

anything: JobType[Any, Any] = JobType("anything", input=Any, output=Any)
MEBIBYTE = 1024 * 1024


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    made: dict[str, Callable[[], StateAdapter]] = {
        "postgres": lambda: PostgresState(request.getfixturevalue("dsn")),
        "redis": lambda: RedisState(request.getfixturevalue("redis_url")),
        "sqlite": lambda: SQLiteState(tmp_path / "queue.db"),
    }
    with Client(made[request.param](), JobTypes(anything), notify=InProcessNotify()) as client:
        yield client


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


GREATEST: dict[str, Any] = {
    "bytes": "x" * (MEBIBYTE - 2),
    "bytes of UTF-8": "é" * ((MEBIBYTE - 2) // 2),
    "depth": deep(64),
    "digits": int("9" * 300),
    "a small fraction": 5e-324,
}
TOO_GREAT: dict[str, Any] = {
    "bytes": "x" * (MEBIBYTE - 1),
    "bytes of UTF-8": "é" * ((MEBIBYTE - 2) // 2) + "x",
    "keys": {f"{number:07}": None for number in range(75_000)},
    "depth": deep(65),
    "digits": int("9" * 301),
    "numbers that are written out": [1e300] * 4_000,
    "a NUL": "a\x00",
    "half a character": "\ud800",
}


def test_what_just_fits_comes_back(client: Client) -> None:
    """As an input and as an output, whatever the store makes of it."""
    for name, value in GREATEST.items():
        chain = client.start_chain(anything, value, id=name)
        client.complete_chain(chain, value)
        job = client.get_job(name)
        assert (job.status, job.input, job.output) == (JobStatus.COMPLETED, value, value), name


def test_what_is_a_little_more_is_refused_and_nothing_written(client: Client) -> None:
    chain = client.start_chain(anything, 1, id="there")
    for name, value in TOO_GREAT.items():
        with pytest.raises(PayloadError) as caught:
            client.start_chain(anything, value, id=name)
        assert len(str(caught.value)) < 1_000
        with pytest.raises(PayloadError):
            client.complete_chain(chain, value)
    assert [one.id for one in client.list_jobs()] == ["there"]
    assert client.get_job("there").status is JobStatus.READY


def test_names_of_every_kind(client: Client) -> None:
    longest, longer = "x" * 512, "x" * 513
    client.start_chain(anything, 1, id=longest, deduplication=Deduplicate(longest), limit_key=longest)
    assert client.get_chain(longest).id == longest
    for name in (longer, "", "a\x00b", "\udfff", "é" * 501):
        wrong: tuple[dict[str, Any], ...] = ({"id": name}, {"limit_key": name}, {"attributes": {"user": name}})
        for given in wrong:
            with pytest.raises(InvalidIdentifierError):
                client.start_chain(anything, 1, **given)
        with pytest.raises(InvalidIdentifierError):
            client.start_chain(anything, 1, deduplication=Deduplicate(name))
    assert len(client.list_jobs()) == 1


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a\n", "a\x00", "é", "a" * 129, 'a"', "a'", "a;b", "a\x1b[31m", None]
)
def test_names_of_job_types(name: Any) -> None:
    with pytest.raises(DefinitionError):
        JobType(name, input=int, output=int)
