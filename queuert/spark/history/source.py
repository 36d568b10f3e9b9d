"""What every part of a run needs: a session of its own, the output, the database, and the right to write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queuert.spark.datasource import QueuertDataSource
from queuert.spark.errors import found_in
from queuert.spark.history.errors import HistoryBusyError
from queuert.spark.history.files import Files, HadoopFiles
from queuert.spark.history.progress import OnProgress, Progress
from queuert.spark.history.records import Identity, check_identity
from queuert.spark.options import ConnectionOptions, option_texts, parse_options
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.bulk import BulkSession, bulk_session
from queuert.state.postgres.history import HistoryFacts, HistoryLock, history_facts, history_lock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "queuert history"

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # The old format of timestamps is not understood by all that read Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A date stays the text that it is in the path, whatever it looks like.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.ansi.enabled": "true",
}


def own_session(spark: SparkSession) -> SparkSession:
    """A session of the same application whose settings are changed without those of the caller's."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    session.dataSource.register(QueuertDataSource)
    return session


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run reads from and writes to.

    Attributes:
        spark: the session.
        files: the output.
        options: of the data source, for the connection.
        session: a connection of the driver's own.
        facts: how the database stood when the run began.
        partitions: into how many parts tables are read.
        lock: the right to write to the output.
        tell: who is told of the steps.
    """

    spark: SparkSession
    files: Files
    options: Mapping[str, str]
    session: BulkSession
    facts: HistoryFacts
    partitions: int
    lock: HistoryLock
    tell: OnProgress

    def read(self, table: str, **options: object) -> DataFrame:
        """A table of the database, of what is settled."""
        given = option_texts((name, _as_json(value)) for name, value in options.items())
        reader = self.spark.read.format("queuert").options(**self.options).option("table", table)
        return reader.options(numPartitions=str(self.partitions), **given).load()

    def path(self, table: str) -> str:
        """The whole address of a table of the output."""
        return f"{self.files.root}/{table}"

    def step(self, name: str, text: str, done: int | None = None, total: int | None = None) -> None:
        """Tell of a step, and make sure that the right to write is still held."""
        self.tell(Progress(name, text, done, total))
        self.lock.check()


def connection_options(given: Mapping[str, Any]) -> tuple[dict[str, str], ConnectionOptions]:
    """The options of the connection in Spark's spelling, and checked.

    Raises:
        SparkOptionError: one is unknown or makes no sense, or there is no address.
    """
    options = option_texts(given.items())
    checked = parse_options(ConnectionOptions, options)
    checked.address()
    return options, checked


@contextmanager
def opened(
    spark: SparkSession, output: str, connection: Mapping[str, Any], partitions: int, tell: OnProgress
) -> Iterator[Place]:
    """Check all that can be checked, and hold the output for the block.

    Raises:
        SparkOptionError: an option makes no sense.
        HistoryOutputError: the output belongs to another database.
        HistoryBusyError: another run writes to it.
        SchemaMissingError: the schema is older than this version.
        StateUnavailableError: the database cannot be reached.
    """
    options, checked = connection_options(connection)
    own = own_session(spark)
    files = HadoopFiles(own, output)
    settings = settings_of(checked)
    with ExitStack() as stack:
        session = stack.enter_context(bulk_session(settings, application_name=APPLICATION))
        session.check_schema()
        holder = stack.enter_context(bulk_session(settings, application_name=f"{APPLICATION} lock"))
        lock = stack.enter_context(history_lock(holder, f"{settings.schema} {files.root}"))
        if lock is None:
            raise HistoryBusyError(f"another run writes to {files.root}")
        facts = history_facts(session)
        check_identity(files, Identity(system=facts.system, database=facts.database, schema_name=settings.schema))
        try:
            yield Place(own, files, options, session, facts, partitions, lock, tell)
        except Exception as error:
            found = found_in(error)
            if found is None or found is error:
                raise
            raise found from error


def _as_json(value: object) -> object:
    """Lists as JSON, in which names may have commas; the others as they are."""
    return json.dumps(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
