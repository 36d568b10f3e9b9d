"""Dates and timestamps outside of the years 1 to 9999, which no job can read: without a session."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from queuert import JobType
from queuert.spark.write.columns import Columns
from queuert.spark.write.validation import RowChecker

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
FIRST_MICROSECOND = -62_135_596_800 * 1_000_000
LAST_MICROSECOND = 253_402_300_800 * 1_000_000 - 1
TOO_FAR = [2**31 - 1, 12_687_428, -12_687_429, FIRST_DAY - 1, LAST_DAY + 1]


class Model(BaseModel):
    when: date | None


model: JobType[Model, None] = JobType("model", input=Model, output=None)


def found(column: Any, job_type: JobType[Any, Any] | None = None) -> list[str | None]:
    """What is wrong with each row of a column ``when``."""
    batch = pa.record_batch({"when": column})
    checked = RowChecker(Columns(frozenset(), ("when",)), "t", job_type).check(batch)
    assert len(checked.good) + len(checked.bad) == batch.num_rows == len(checked.columns[-1]) + len(checked.bad)
    return [checked.bad.get(row) for row in range(batch.num_rows)]


def days(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32()).cast(pa.date32())


def microseconds(*values: int | None, zone: str = "UTC") -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", zone))


@pytest.mark.parametrize("job_type", [None, model])
@pytest.mark.parametrize("far", TOO_FAR)
def test_a_date_that_is_too_far_is_a_bad_row(far: int, job_type: JobType[Any, Any] | None) -> None:
    reason = "when is not within the years 1 to 9999"
    assert found(days(FIRST_DAY, far, None, LAST_DAY), job_type) == [None, reason, None, None]
    assert found(days(0, far, 0).slice(1), job_type) == [reason, None]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("far", [FIRST_MICROSECOND - 1, LAST_MICROSECOND + 1, 2**63 - 1, -(2**63)])
def test_a_timestamp_that_is_too_far_is_a_bad_row(far: int, zone: str) -> None:
    column = microseconds(FIRST_MICROSECOND, far, None, LAST_MICROSECOND, zone=zone)
    assert found(column) == [None, "when is not within the years 1 to 9999", None, None]


def test_the_place_of_one_within_a_column_is_named() -> None:
    far = days(TOO_FAR[0])[0]
    near = date(2026, 5, 1)
    day = pa.date32()
    structs = pa.StructArray.from_arrays([days(0, TOO_FAR[0], 0)], ["a"])
    assert found(structs)[1] == "when.a is not within the years 1 to 9999"
    assert found(structs.slice(1)) == [found(structs)[1], None]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 4], pa.int32()), days(0, 1, 2, TOO_FAR[0]))
    assert found(lists) == [None, None, None, "when[] is not within the years 1 to 9999"]
    assert found(lists.slice(2)) == found(lists)[2:]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["k", "l", "m"]), days(0, 1, TOO_FAR[0]))
    assert found(maps) == [None, "when{} is not within the years 1 to 9999"]
    assert found(maps.slice(1)) == found(maps)[1:]
    assert far.value == TOO_FAR[0]
    assert found(pa.array([[[near]], None, []], pa.list_(pa.list_(day)))) == [None, None, None]


def test_what_a_null_hides_is_not_looked_at() -> None:
    hidden = pa.array([True, False])
    structs = pa.StructArray.from_arrays([days(TOO_FAR[0], 0)], ["a"], mask=hidden)
    assert found(structs) == [None, None]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), days(TOO_FAR[0], 0), mask=hidden)
    assert found(lists) == [None, None]


def test_a_column_input_is_looked_at_too() -> None:
    column = pa.StructArray.from_arrays([microseconds(0, LAST_MICROSECOND + 1)], ["at"])
    checker = RowChecker(Columns(frozenset()), "t", None)
    bad = checker.check(pa.record_batch({"input": column})).bad
    assert bad == {1: "input.at is not within the years 1 to 9999"}


def test_schedule_at_is_as_far_as_the_others() -> None:
    checker = RowChecker(Columns(frozenset({"schedule_at"}), ("n",)), "t", None)
    moments = microseconds(LAST_MICROSECOND, LAST_MICROSECOND + 1)
    checked = checker.check(pa.record_batch({"n": [1, 2], "schedule_at": moments}))
    assert checked.bad == {1: "schedule_at is not within the years 1 to 9999"}


def test_the_ends_are_those_of_calendars() -> None:
    assert days(FIRST_DAY, LAST_DAY).to_pylist() == [date.min, date.max]
    ends = [one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max)]
    assert microseconds(FIRST_MICROSECOND, LAST_MICROSECOND).to_pylist() == ends
