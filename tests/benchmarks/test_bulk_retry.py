"""A bulk retry whose operators are killed retries each job once: the benchmark, on a few jobs."""

from __future__ import annotations

import pytest

from benchmarks.bulk_retry import is_exactly_once, measure

pytestmark = pytest.mark.timeout(240)


def test_each_job_is_retried_once_though_two_operators_are_killed(dsn: str) -> None:
    found = measure(dsn, jobs=3_000, workers=1, timeout=90.0)
    assert is_exactly_once(found, 3_000), found
