"""Converts the text of COPY to Arrow batches, without a loop over rows.

Fields are separated and quoted by control characters, which JSON never contains: so JSON need not be quoted, and
quoting is most of the cost of this format. Null is an empty field; an empty string is a quoted one.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from queuert.spark.read.columns import Column, Kind
from queuert.spark.read.timestamps import moments

DELIMITER = "\x1f"
QUOTE = "\x1e"

_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.JSON: pa.string(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.MOMENT: pa.string(),
    Kind.TEXTS: pa.string(),
}

csv: Any = pyarrow.csv


class CsvDecoder:
    """Converts rows of some columns to batches of a schema."""

    def __init__(self, columns: Sequence[Column], schema: pa.Schema) -> None:
        self._schema = schema
        self._lists = [at for at, column in enumerate(columns) if column.kind is Kind.TEXTS]
        self._moments = [at for at, column in enumerate(columns) if column.kind is Kind.MOMENT]
        self._names = [column.name for column in columns]
        self._parse = csv.ParseOptions(delimiter=DELIMITER, quote_char=QUOTE, ignore_empty_lines=False)
        self._convert = csv.ConvertOptions(
            check_utf8=False,  # the server has seen to it
            column_types={column.name: _TYPES[column.kind] for column in columns},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def decode(self, chunks: Iterable[bytes | memoryview]) -> Iterator[pa.RecordBatch]:
        """Yield one batch for each chunk; a chunk consists of whole rows."""
        for chunk in chunks:
            if bytes(chunk[:3]) == codecs.BOM_UTF8:
                chunk = codecs.BOM_UTF8 + bytes(chunk)  # Arrow removes one, which may be the beginning of an id.
            table = csv.read_csv(pa.BufferReader(chunk), self._read_options(len(chunk)), self._parse, self._convert)
            yield self._batch(table)

    def _read_options(self, size: int) -> Any:
        # The chunk is one block: splitting it would search for ends of lines in quoted texts too.
        return csv.ReadOptions(column_names=self._names, use_threads=False, block_size=size + 1)

    def _batch(self, table: pa.Table) -> pa.RecordBatch:
        arrays: list[Any] = [column.combine_chunks() for column in table.columns]
        for at in self._moments:
            arrays[at] = moments(arrays[at])
        for at in self._lists:
            lists = [None if text is None else json.loads(text) for text in arrays[at].to_pylist()]
            arrays[at] = pa.array(lists, self._schema.field(at).type)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
