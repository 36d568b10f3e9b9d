"""A snapshot of the database that all parts of all reads share; the driver keeps it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from queuert.errors import StateUnavailableError
from queuert.spark.options import ConnectionOptions, parse_options
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.copy_export import exported_snapshot


@contextmanager
def snapshot(url: str | None = None, **options: str) -> Iterator[str]:
    """Open a snapshot for the block, and yield its name for the option ``snapshot``.

    All parts and DataFrames that are read with it see the database as it was when the block was entered. Run the
    actions inside the block, since a DataFrame is read only when it is used. While it is open, vacuum cannot remove
    rows that changed since, which slows a busy queue after some minutes, and what rewrites the table of jobs (``VACUUM
    FULL``, some migrations) waits, and all workers wait behind it: set ``lock_timeout`` for it. Retention does not
    wait: once it has dropped a day since, a read of events raises ``EventsLostError``. For older data use ``settled``
    reads instead, without a snapshot.

    Args:
        url: the URL of the database; by default that of ``QUEUERT_URL``.
        options: other options of the connection, such as ``urlEnv``, ``service`` or ``schema``.

    Raises:
        SparkOptionError: an option is unknown, or there is no URL.
        StateUnavailableError: the database cannot be reached.

    Example::

        with snapshot(url) as name:
            read = spark.read.format("queuert").option("url", url).option("snapshot", name)
            jobs = read.option("table", "jobs").load()
            jobs.groupBy("type", "status").count().show()
    """
    given = options if url is None else {"url": url, **options}
    with ExitStack() as held:
        yield held.enter_context(exported_snapshot(settings_of(parse_options(ConnectionOptions, given))))
        # If the connection was lost, the reads that needed it have raised; the others were complete.
        with suppress(StateUnavailableError):
            held.close()
