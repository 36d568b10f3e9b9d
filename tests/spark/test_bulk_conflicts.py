"""Micro-batches that are given up: what others have staged under the same sink stays. No session of Spark is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from queuert.spark.errors import StagingLostError, WriteConflictError
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.write.stream import JobStreamWriter
from tests.spark.support import numbers, query

pytestmark = pytest.mark.spark


def writer(dsn: str) -> JobStreamWriter:
    given = parse_options(WriteOptions, {"url": dsn, "jobType": "resize", "sinkId": "s"})
    return JobStreamWriter(given, StructType([StructField("n", LongType())]))


def rows(*values: int) -> Iterator[Any]:
    return iter([pa.record_batch({"n": pa.array(values, pa.int64())})])


def staged(dsn: str) -> list[Any]:
    return query(dsn, "SELECT (input->>'n')::int AS n FROM queuert.stream_stage ORDER BY n")


def test_an_impostor_that_is_refused_takes_nothing_from_the_sink(dsn: str, in_batch: Callable[..., None]) -> None:
    in_batch(0, "own")
    writer(dsn).commit([writer(dsn).write(rows(1))], 0)
    in_batch(1, "own")
    running = writer(dsn).write(rows(2))
    in_batch(5, "impostor")
    refused = writer(dsn).write(rows(9))
    with pytest.raises(WriteConflictError, match="sinkId of its own"):
        writer(dsn).commit([refused], 5)
    writer(dsn).abort([refused], 5)
    assert staged(dsn) == [2]
    writer(dsn).commit([running], 1)
    assert numbers(dsn) == [1, 2]
    assert staged(dsn) == []


def test_an_abort_takes_what_its_own_messages_have_staged(dsn: str, in_batch: Callable[..., None]) -> None:
    in_batch(0, "own")
    failed, also, other = (writer(dsn).write(rows(n)) for n in (1, 2, 3))
    writer(dsn).abort([failed, None, also], 0)
    assert staged(dsn) == [3]
    with pytest.raises(StagingLostError):
        writer(dsn).commit([failed], 0)
    writer(dsn).commit([other], 0)
    assert numbers(dsn) == [3]
