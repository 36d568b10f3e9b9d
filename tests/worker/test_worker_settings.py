"""Settings of a worker of a wrong type or out of range are refused when it is made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from queuert import Client, InProcessWorker, JobType, JobTypes, Processors, SQLiteState
from queuert.errors import ConfigurationError
from queuert.worker import Attempt

work = JobType("work", input=str, output=str)
JOB_TYPES = JobTypes(work)
processors = Processors(JOB_TYPES)


@processors.handles(work)
def handle(attempt: Attempt[str, str]) -> str:
    return attempt.input


def worker(**settings: Any) -> InProcessWorker:
    return InProcessWorker(Client(SQLiteState(":memory:"), JOB_TYPES), processors, **settings)


_REFUSED: list[tuple[str, str, list[Any]]] = [
    ("name", "the worker name must be 1 to 64 letters, digits, '.', '_' or '-', got ", [5, b"a", "", "a b"]),
    (
        "concurrency",
        "concurrency must be an integer between 1 and 2,147,483,647, got ",
        ["3", None, 2.5, math.inf, True, 0, 2**31],
    ),
    (
        "shutdown_timeout",
        "shutdown_timeout must be at least 0 seconds and at most a hundred years, got ",
        ["5", None, True, -1, math.inf, math.nan],
    ),
    (
        "poll_interval",
        "poll_interval must be at least 0.001 seconds and at most a hundred years, got ",
        ["1", True, 0, 1e-9, math.inf, math.nan],
    ),
    ("claim_bytes", "claim_bytes must be an integer of at least 1, got ", ["x", None, 1.5, True, 0]),
    (
        "max_connections",
        "max_connections must be an integer between 2 and 2,147,483,647, got ",
        ["9", 2.5, True, 0, 1, 2**31],
    ),
    ("keep_schedules", "keep_schedules must be True or False, got ", ["no", 1, None]),
]


@pytest.mark.parametrize(
    ("setting", "message", "value"), [(name, text, value) for name, text, values in _REFUSED for value in values]
)
def test_a_setting_that_no_worker_can_have_is_refused_and_shown(setting: str, message: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        worker(**{setting: value})
    assert str(raised.value) == f"{message}{value!r}"


def test_required_middlewares_that_are_no_sequence_are_refused() -> None:
    with pytest.raises(ConfigurationError) as raised:
        worker(required_middlewares=5)
    assert (
        str(raised.value)
        == "required_middlewares must be a sequence of middlewares, got one int; write [...] around it"
    )


def test_the_least_and_the_most_of_each_setting_are_taken() -> None:
    worker(concurrency=1, shutdown_timeout=0, poll_interval=0.001, claim_bytes=1, max_connections=2)
    worker(concurrency=2**31 - 1, shutdown_timeout=3_153_600_000, poll_interval=None, max_connections=2**31 - 1)
