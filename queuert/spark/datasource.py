"""The data source that Spark finds by ``format("queuert")``."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from queuert.job_types import JobType
from queuert.spark.errors import SparkOptionError
from queuert.spark.gc_tuning import spare_the_loaded
from queuert.spark.jvm import java_of
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.read.options import ReadOptions, StreamReadOptions


class QueuertDataSource(DataSource):
    """Reads jobs as DataFrames and writes DataFrames as jobs. Options are in :mod:`queuert.spark.options`."""

    declared: ClassVar[JobType[Any, Any] | None] = None
    """The job type that written rows are checked against; None for the one that the options name, if any."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "queuert"

    def schema(self) -> StructType:
        """Return the columns of a read."""
        from queuert.spark.read.schemas import schema_of

        spare_the_loaded()
        # Other options belong to a batch or to a stream; Spark does not say for which of them it asks.
        chosen = {name: value for name, value in self.options.items() if name.lower() in ("table", "columns")}
        return schema_of(parse_options(ReadOptions, chosen).selected())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of one table."""
        from queuert.spark.read.batch import TableReader

        spare_the_loaded()
        return TableReader(parse_options(ReadOptions, self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of the event log as a stream."""
        from queuert.spark.read.stream import EventStreamReader

        return EventStreamReader(parse_options(StreamReadOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of one DataFrame."""
        from queuert.spark.write.batch import JobBatchWriter

        spare_the_loaded()
        if overwrite:
            raise SparkOptionError("mode must be 'append', as jobs are never overwritten")
        return JobBatchWriter(parse_options(WriteOptions, self.options), schema, self.declared)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer of a stream's micro-batches."""
        from queuert.spark.write.stream import JobStreamWriter

        if overwrite:
            raise SparkOptionError("outputMode must be 'append', got 'complete'")
        return JobStreamWriter(parse_options(WriteOptions, self.options), schema, self.declared)


def declaring(job_type: JobType[Any, Any]) -> type[QueuertDataSource]:
    """Return a data source, under a name of its own, that checks written rows against a job type.

    Spark sends the class to its Python processes as it sends functions. The job type is not passed as an option,
    because anyone who may write SQL can set options, and unpickling runs code.
    """
    dumps: Any = cloudpickle.dumps
    digest = hashlib.sha256(dumps(job_type)).hexdigest()[:32]

    class DeclaringDataSource(QueuertDataSource):
        declared = job_type

        @classmethod
        def name(cls) -> str:
            return f"queuert_{digest}"

    return DeclaringDataSource


def register(spark: SparkSession) -> None:
    """Make ``format("queuert")`` known to a session, and the session to this thread. Call it in each thread that
    writes.

    A classic session finds Python data sources for ``df.write`` only in the thread that created it, but a handler runs
    in another one. The call is cheap and can be repeated.

    Example::

        register(spark)
        df.write.format("queuert").option("jobType", "resize").mode("append").save()
    """
    use_in_this_thread(spark)
    spark.dataSource.register(QueuertDataSource)


def use_in_this_thread(spark: SparkSession) -> None:
    """Let ``df.write`` find Python data sources in this thread. Spark Connect does so by itself."""
    java = java_of(spark)
    if java is not None:
        java.classes.org.apache.spark.sql.classic.SparkSession.setActiveSession(java.session)
