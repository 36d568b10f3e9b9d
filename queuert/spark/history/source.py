"""What each part of a run needs: a Spark session, the output, the database, and the lock of the output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from queuert.spark.datasource import QueuertDataSource
from queuert.spark.errors import HistoryBusyError, found_in
from queuert.spark.history.files import Files, HadoopFiles
from queuert.spark.history.records import Identity, check_identity
from queuert.spark.history.results import OnProgress, Progress
from queuert.spark.options import ConnectionOptions, option_texts, parse_options
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.adapter import PostgresState
from queuert.state.postgres.bulk import BulkSession, bulk_session
from queuert.state.postgres.history import HistoryFacts, HistoryLock, history_facts, history_lock
from queuert.state.sync_unread import unread_since

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "queuert history"

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Some readers of Parquet do not support the old format of timestamps.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A date in a path is read as text.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.ansi.enabled": "true",
}


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session of the same application with settings of its own."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    session.dataSource.register(QueuertDataSource)
    return session


@dataclass(frozen=True, slots=True)
class Place:
    """The source and the destination of a run.

    Attributes:
        spark: the session.
        files: the output.
        options: options of the data source, for the connection.
        session: a database connection of the driver.
        facts: the state of the database when the run began.
        partitions: the number of parts in which tables are read.
        lock: the lock of the output.
        tell: called after each step.
    """

    spark: SparkSession
    files: Files
    options: Mapping[str, str] = field(repr=False)  # With the password of the address.
    session: BulkSession
    facts: HistoryFacts
    partitions: int
    lock: HistoryLock
    tell: OnProgress

    def read(self, table: str, **options: object) -> DataFrame:
        """Read a table of the database, with settled consistency."""
        given = option_texts((name, _as_json(value)) for name, value in options.items())
        reader = self.spark.read.format("queuert").options(**self.options).option("table", table)
        return reader.options(numPartitions=str(self.partitions), **given).load()

    def unread_since(self) -> datetime | None:
        """Return the time from which on webhooks may still have to read chains that closed."""
        settings = self.session.settings
        # As the other connections of a run, it prepares nothing: it may be through any pooler.
        state = PostgresState(
            settings.dsn, schema=settings.schema, prepare_threshold=None, application_name=APPLICATION
        )
        store = state.sync_store(max_connections=1)
        store.open()
        try:
            return unread_since(store)
        finally:
            store.close()

    def path(self, table: str) -> str:
        """Return the whole address of a table of the output."""
        return f"{self.files.root}/{table}"

    def step(self, name: str, text: str, done: int | None = None, total: int | None = None) -> None:
        """Report a step, and check that the lock of the output is still held."""
        self.tell(Progress(name, text, done, total))
        self.lock.check()


def connection_options(given: Mapping[str, Any]) -> tuple[dict[str, str], ConnectionOptions]:
    """Return the options of the connection in Spark's spelling, checked.

    Raises:
        SparkOptionError: an option is unknown or not valid, or there is no URL.
    """
    options = option_texts(given.items())
    checked = parse_options(ConnectionOptions, options)
    checked.address()
    return options, checked


@contextmanager
def opened(
    spark: SparkSession, output: str, connection: Mapping[str, Any], partitions: int, tell: OnProgress
) -> Iterator[Place]:
    """Check all options, and lock the output for the block.

    Raises:
        SparkOptionError: an option is not valid.
        HistoryOutputError: the output belongs to another database.
        HistoryBusyError: another run is writing to it.
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
            raise HistoryBusyError(f"another run is writing to {files.root}: wait until it has ended")
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
    """Return lists as JSON, since names may contain commas; other values unchanged."""
    return json.dumps(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
