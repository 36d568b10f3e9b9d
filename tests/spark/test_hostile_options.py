"""Options are text of whoever may write SQL on a shared session: they run nothing on the driver."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from pyspark.errors import PySparkException

from queuert import JobType
from queuert.spark import enqueue, register
from queuert.spark.errors import BadRowsError, SparkOptionError
from queuert.spark.options import WriteOptions, parse_options
from tests.spark.support import numbers, resize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def declared_in_a_function() -> JobType[Any, Any]:
    """A job type that no other process can import."""

    class Local(BaseModel):
        n: int

    return JobType("resize", input=Local, output=None)


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What is there if code of an option has run."""
    return tmp_path / "it_ran"


@pytest.fixture
def bomb(place: Path) -> str:
    """A pickle as an option may hold it."""
    return base64.b64encode(pickle.dumps(Bomb(place))).decode()


@pytest.mark.parametrize("name", ["jobTypeObject", "job_type_object", "jobtypeobject"])
def test_no_option_holds_a_pickle(name: str, bomb: str, place: Path) -> None:
    with pytest.raises(SparkOptionError, match="unknown option"):
        parse_options(WriteOptions, {"jobType": "resize", name: bomb})
    assert not place.exists()


def test_a_view_with_a_pickle_in_its_options_runs_nothing(
    spark: SparkSession, dsn: str, bomb: str, place: Path
) -> None:
    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW hostile (n INT) USING queuert "
        f"OPTIONS (jobType 'resize', jobTypeObject '{bomb}', url '{dsn}')"
    )
    with pytest.raises(PySparkException, match="unknown option"):
        spark.sql("INSERT INTO hostile SELECT id FROM range(3)")
    assert not place.exists()
    assert numbers(dsn) == []


def test_a_job_type_that_cannot_be_imported_is_still_taken(spark: SparkSession, dsn: str) -> None:
    """As in a notebook: it goes with the data source, by Spark's own way for functions."""
    local = declared_in_a_function()
    assert enqueue(spark.range(4).toDF("n"), local, url=dsn).started == 4
    assert numbers(dsn) == [0, 1, 2, 3]
    with pytest.raises(BadRowsError):
        enqueue(spark.sql("SELECT 'x' AS n"), local, url=dsn)


def test_two_declarations_of_a_job_type_are_reported_apart(spark: SparkSession, dsn: str) -> None:
    with pytest.raises(SparkOptionError, match="jobTypes"):
        enqueue(spark.range(1).toDF("n"), resize, url=dsn, job_types="tests.spark.support:job_types")
