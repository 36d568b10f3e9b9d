"""Finds the rows that are valid jobs, and what is wrong with the others. Valid rows are recognized without a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from queuert import envelope
from queuert._json_validation import MAX_EXPANSION
from queuert.errors import BlockerMismatchError, InvalidIdentifierError, PayloadError
from queuert.job_types import JobType
from queuert.new_chain import MAX_PRIORITY
from queuert.payloads import PayloadCodec
from queuert.spark.arrow import pc
from queuert.spark.write.columns import INPUT, Columns, declared_input
from queuert.spark.write.copy_text import new_ids
from queuert.spark.write.json_text import json_text, object_text
from queuert.spark.write.out_of_range_dates import far_dates
from queuert.texts import check_text

_MAX_CHARS = 512
_MAX_BYTES = 1_000
_RE2_REPEATS = 999

_TEXTS = {"id": "id", "deduplication_key": "deduplication key", "limit_key": "limit key"}
_ORDER = ("id", "deduplication_key", "limit_key", "priority", "schedule_at", "blocked_by", INPUT)


@dataclass(frozen=True, slots=True)
class Checked:
    """A batch of rows.

    Attributes:
        names: the columns of the staging table that have values.
        columns: their values in the rows that are valid jobs.
        good: the numbers of those rows in the batch.
        bad: the numbers of the others, and what is wrong with each.
    """

    names: tuple[str, ...]
    columns: list[Any]
    good: Any
    bad: dict[int, str]


class RowChecker:
    """Checks the rows of one DataFrame, by the model of the job type if there is one, and by the limits."""

    def __init__(self, columns: Columns, job_type_name: str, job_type: JobType[Any, Any] | None) -> None:
        self._columns = columns
        self._job_type = job_type
        model, limits = declared_input(job_type)
        self._reader = PayloadCodec(model, job_type=job_type_name, field=INPUT, limits=limits)
        self._encode = self._reader.encode if job_type is None else job_type.encode_input
        self._encode_all = job_type is not None and not job_type.format.writes_plain
        self._read_all = job_type is not None or columns.is_text
        digits = min(limits.max_digits, _RE2_REPEATS) + 1
        self._suspicious = (
            rf"[0-9]{{{digits}}}|[0-9][eE][+-]?[0-9]{{3}}|\\u0000|\\u[dD][89a-fA-F]"
            rf"|(^|[:\[,])-?(nan|inf)($|[,}}\]])|{re.escape(envelope.MARK)}"
        )
        self.names = tuple(name for name in _ORDER if name in columns.settings or name in ("id", INPUT))

    def check(self, batch: Any) -> Checked:
        """Separate the valid rows of a record batch from the others."""
        numbers = pa.array(range(batch.num_rows), pa.int32())
        bad: dict[int, str] = {}
        if not _is_unicode(batch):
            broken = [row for row in range(batch.num_rows) if not _is_unicode(batch.slice(row, 1))]
            bad = dict.fromkeys(broken, "it holds text that is not Unicode")
            kept = pc.invert(pc.is_in(numbers, pa.array(list(bad), pa.int32())))
            batch, numbers = batch.filter(kept), numbers.filter(kept)
        found: dict[int, str] = {}
        columns = {name: self._setting(batch, name, found) for name in self.names if name != INPUT}
        columns[INPUT] = self._input(batch, found)
        values = [columns[name] for name in self.names]
        if found:
            places = numbers.to_pylist()
            bad |= {places[row]: reason for row, reason in found.items()}
            kept = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int32()), pa.array(list(found), pa.int32())))
            values, numbers = [value.filter(kept) for value in values], numbers.filter(kept)
        return Checked(self.names, values, numbers, bad)

    # What a job is started with

    def _setting(self, batch: Any, name: str, bad: dict[int, str]) -> Any:
        if name == "id" and name not in self._columns.settings:
            return new_ids(batch.num_rows)
        column = batch.column(name)
        if name in _TEXTS:
            column = pc.cast(column, pa.string())
            for row in _rows(_unfit_texts(column)):
                _note(bad, row, _text_reason(column[row].as_py(), _TEXTS[name]))
            return pc.coalesce(column, new_ids(batch.num_rows)) if name == "id" and column.null_count else column
        if name == "priority":
            out = pc.or_(pc.less(column, -MAX_PRIORITY), pc.greater(column, MAX_PRIORITY)) if len(column) else column
            for row in _rows(out):
                _note(bad, row, f"the priority is not from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}")
        elif name == "schedule_at":
            _note_far(bad, column, name)
        else:
            self._check_blockers(column, bad)
        return column

    def _check_blockers(self, column: Any, bad: dict[int, str]) -> None:
        declared = None if self._job_type is None else self._job_type.blockers
        values = pc.cast(column.values, pa.string())
        odd = values.null_count or any(True for _ in _rows(_unfit_texts(values)))
        if declared is None and not odd:
            return
        for row, ids in enumerate(column.to_pylist()):
            try:
                for one in ids or ():
                    check_text(one, what="chain id in blocked_by")
                if declared is not None:
                    declared.check([None] * len(set(ids or ())))
            except (InvalidIdentifierError, BlockerMismatchError) as error:
                _note(bad, row, str(error))

    # Its input

    def _input(self, batch: Any, bad: dict[int, str]) -> Any:
        for name in self._columns.fields or (INPUT,):
            if name in batch.schema.names:
                _note_far(bad, batch.column(name), name)
        texts = self._texts(batch)
        closely = list(range(len(texts))) if self._encode_all else list(_rows(self._look_closely(batch, texts)))
        if not self._read_all and not closely:
            return texts
        listed = texts.to_pylist()
        replaced: dict[int, str] = {}
        seen = set(closely)
        for row in range(len(listed)) if self._read_all else closely:
            try:
                value = self._reader.decode(listed[row])
                if row in seen:
                    replaced[row] = self._encode(value)
            except PayloadError as error:
                _note(bad, row, f"{error.path}: {error.reason}")
        if replaced:
            texts = pa.array([replaced.get(row, text) for row, text in enumerate(listed)], pa.string())
        return texts

    def _texts(self, batch: Any) -> Any:
        if self._columns.is_text:
            return pc.fill_null(pc.cast(batch.column(INPUT), pa.string()), "null")
        if INPUT in batch.schema.names:
            return json_text(batch.column(INPUT))
        names = self._columns.fields
        return object_text(names, [batch.column(name) for name in names], batch.num_rows)

    def _look_closely(self, batch: Any, texts: Any) -> Any:
        """Return a mask of the texts that may exceed the limits, or contain what no store accepts."""
        limits = self._reader.limits
        large = pc.greater(pc.binary_length(texts), limits.max_bytes // MAX_EXPANSION)
        if self._columns.is_text or max(map(_depth, batch.schema.types), default=0) >= limits.max_depth:
            depth = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
            large = pc.or_(large, pc.greater(depth, limits.max_depth))
        return pc.or_(large, pc.match_substring_regex(texts, self._suspicious))


def _depth(kind: Any) -> int:
    """Return the depth of nesting of an Arrow type."""
    children = [kind.field(place).type for place in range(kind.num_fields)]
    # The entries of a map are structs, which JSON does not show.
    return 1 + max(map(_depth, children)) - pa.types.is_map(kind) if children else 0


def _is_unicode(batch: Any) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _unfit_texts(column: Any) -> Any:
    long = pc.or_(pc.greater(pc.utf8_length(column), _MAX_CHARS), pc.greater(pc.binary_length(column), _MAX_BYTES))
    return pc.or_(pc.or_(long, pc.equal(pc.binary_length(column), 0)), pc.match_substring(column, "\x00"))


def _text_reason(text: str, what: str) -> str:
    try:
        check_text(text, what=what)
    except InvalidIdentifierError as error:
        return str(error)
    return f"the {what} cannot be stored"


def _rows(mask: Any) -> Iterator[int]:
    """Return the indexes of the rows where a mask is true."""
    if pc.any(mask).as_py():
        yield from pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()


def _note_far(bad: dict[int, str], column: Any, name: str) -> None:
    for row, place in far_dates(column, name):
        _note(bad, row, f"{place} is not within the years 1 to 9999")


def _note(bad: dict[int, str], row: int, reason: str) -> None:
    bad.setdefault(row, reason)
