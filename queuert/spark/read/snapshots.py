"""A moment of the database that all parts of all reads share, held open by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from queuert.errors import StateUnavailableError
from queuert.spark.options import ConnectionOptions, parse_options
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.copy_export import exported_snapshot


@contextmanager
def snapshot(url: str | None = None, **options: str) -> Iterator[str]:
    """Hold a snapshot for the block, and give its name for the option ``snapshot``.

    All that is read with it, in any number of parts and DataFrames, is as the database was when the block was entered.
    Let the actions end inside the block: a DataFrame is read when it is used. While it is held, vacuum cannot clean up
    what changed since, which a busy queue feels after some minutes; for history read what is settled instead, without a
    snapshot.

    Args:
        url: the address of the database; by default that of ``QUEUERT_URL``.
        options: others of the connection, such as ``urlEnv``, ``service`` or ``schema``.

    Raises:
        SparkOptionError: an option is unknown, or there is no address.
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
        # That it was lost meanwhile is told by the reads that needed it; those that are done were right.
        with suppress(StateUnavailableError):
            held.close()
