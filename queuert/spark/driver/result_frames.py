"""The results of chains as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_json

from queuert.client import Client
from queuert.envelope import MARK
from queuert.errors import ChainNotFoundError
from queuert.jobs import ChainRecord
from queuert.new_chain import ChainReference, chain_ids
from queuert.spark.driver.output_schema import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import TypeForm

COLUMNS = ("chain_id", "type", "status", "input", "output", "error")
"""The columns of results, all text. ``input`` and ``output`` are JSON; ``error`` is null except for failed chains."""

_PAGE = 1_000


def results(
    spark: SparkSession, client: Client, chains: Iterable[ChainReference], *, output: TypeForm[Any] | None = None
) -> DataFrame:
    """Return the present state of chains as a DataFrame, a row for each in the given order: see :data:`COLUMNS`.

    The rows pass through the driver. For millions, read the table ``chains`` of the data source ``queuert`` instead.

    Args:
        spark: the session of the DataFrame, classic or Spark Connect.
        client: the client that reads the chains.
        chains: handles or ids.
        output: parse the outputs with the Spark type of this pydantic type (:func:`~queuert.spark.spark_type`); what
            does not match is null. By default ``output`` is JSON text.

    Raises:
        ChainNotFoundError: a chain does not exist, or has expired.

    Example::

        results(spark, client, chains, output=Published).select("chain_id", "output.address")
    """
    table = _table(list(_batches(client, chain_ids(chains))))
    frame = spark.createDataFrame(table)
    return frame if output is None else parsed(frame, output)


def parsed(frame: DataFrame, output: TypeForm[Any]) -> DataFrame:
    """Parse the column ``output``, JSON text, with the Spark type of a pydantic type."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    # Spark can parse only structs, lists and maps at the root.
    around = StructType([StructField("value", spark_type(output))])
    text = f.concat(f.lit('{"value":'), f.col("output"), f.lit("}"))
    return frame.withColumn("output", f.from_json(text, around)["value"])


def _batches(client: Client, ids: Sequence[str]) -> Iterator[dict[str, list[str | None]]]:
    store = client._open_store()
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        records = store.get_chains(page)
        missing = [one for one, record in zip(page, records, strict=True) if record is None]
        if missing:
            raise ChainNotFoundError(missing[0])
        yield _columns(client, [record for record in records if record is not None])


def _columns(client: Client, records: Sequence[ChainRecord]) -> dict[str, list[str | None]]:
    return {
        "chain_id": [record.id for record in records],
        "type": [record.type for record in records],
        "status": [record.status.value for record in records],
        "input": [_readable(client, record.type, "input", record.input) for record in records],
        "output": [_readable(client, record.tail_type, "output", record.output) for record in records],
        "error": [None if record.error is None else str(record.error) for record in records],
    }


def _readable(client: Client, type_name: str, field: Literal["input", "output"], text: str | None) -> str | None:
    """Return stored text as JSON, decoded with the format of the job type if it has one of its own."""
    job_type = client.job_types.get(type_name)
    if text is None or job_type is None or MARK not in text:
        return text
    return to_json(job_type.shown(field, json.loads(text))).decode()


def _table(batches: Sequence[dict[str, list[str | None]]]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    return pa.Table.from_batches([pa.RecordBatch.from_pydict(one, schema=schema) for one in batches], schema=schema)
