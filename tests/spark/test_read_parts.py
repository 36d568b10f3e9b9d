"""Options, SQL, offsets and the decoding of a read: without Spark, and without a database."""

from __future__ import annotations

import itertools
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pyarrow as pa
import pytest

from queuert.errors import StateUnavailableError
from queuert.spark.errors import OffsetError, SparkOptionError
from queuert.spark.options import parse_options
from queuert.spark.read.batch import wait_for_standby
from queuert.spark.read.columns import Column, Kind, chosen_columns
from queuert.spark.read.csv_arrow import CsvDecoder
from queuert.spark.read.offsets import Offset, split
from queuert.spark.read.options import ReadOptions, StreamReadOptions
from queuert.spark.read.sql import (
    Day,
    Query,
    attempt_queries,
    block_ranges,
    day_ranges,
    event_queries,
    id_ranges,
    job_queries,
)
from queuert.spark.read.stream import EventSlice
from queuert.spark.read.timestamps import moments
from queuert.state.postgres import copy_export
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.event_log import LogState


def options(**given: str) -> ReadOptions:
    return parse_options(ReadOptions, given)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"typos": "a"}, "unknown option 'typos'"),
        ({"table": "job"}, "table"),
        ({"table": "workers", "types": "a"}, "workers cannot be filtered by types"),
        ({"table": "attempts", "createdFrom": "2026-01-01T00:00:00Z"}, "cannot be filtered by createdFrom"),
        ({"createdFrom": "2026-01-01T00:00:00"}, "createdFrom must be a time with an offset"),
        ({"createdFrom": "1767225600"}, "createdFrom must be a time in ISO 8601"),
        ({"columns": "id,nothing"}, "for jobs, got 'nothing'"),
        ({"columns": "id,id"}, "each only once"),
        ({"columns": ""}, "at least one"),
        ({"snapshot": "1'; DROP TABLE job"}, "snapshot"),
        ({"snapshot": "00000004-0000049A-1", "consistency": "none"}, "only one of snapshot and consistency"),
        ({"consistency": "none", "toTx": "5"}, "only with consistency settled"),
        ({"numPartitions": "0"}, "numPartitions"),
        ({"chainIds": '["a'}, "chainIds must be a JSON array"),
        ({"url": "postgresql://u:secret@h/d", "service": "s"}, "only one of url, service may be set"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], reported: str) -> None:
    with pytest.raises(SparkOptionError) as refused:
        options(**given)
    assert reported in str(refused.value)
    assert "secret" not in str(refused.value)


def test_lists_of_names() -> None:
    assert options(types="a, b").types == ("a", "b")
    assert options(chainIds='["a,b", " c "]').chain_ids == ("a,b", " c ")


def test_a_stream_reads_events_and_says_so() -> None:
    with pytest.raises(SparkOptionError, match="option table is missing"):
        parse_options(StreamReadOptions, {})
    with pytest.raises(SparkOptionError, match="table"):
        parse_options(StreamReadOptions, {"table": "jobs"})


def test_values_are_bound_and_never_in_the_text() -> None:
    evil = "'; DROP TABLE job; --%(x)s"
    given = options(
        types=evil, statuses="ready", chainIds=f'["{evil}"]', writeId=evil, createdFrom="2026-01-01T00:00:00+01:00"
    )
    [query] = job_queries(given, given.selected(), "queuert", [block_ranges(1, 1)[0]])
    assert "DROP" not in query.text
    assert query.parameters["types"] == query.parameters["chain_ids"] == [evil]
    assert query.parameters["write_id"] == evil
    assert query.parameters["created_from"] == datetime(2025, 12, 31, 23, tzinfo=UTC)


def test_what_can_still_change_is_left_out_unless_requested_for() -> None:
    for table in ("jobs", "chains"):
        settled, plain = options(table=table, toTx="9"), options(table=table, consistency="none")
        [bounded] = job_queries(settled, settled.selected(), "queuert", block_ranges(1, 1))
        [free] = job_queries(plain, plain.selected(), "queuert", block_ranges(1, 1))
        assert bounded.parameters["to_tx"] == "9"
        assert "completed_tx" in bounded.text.split("WHERE")[-1]
        assert "to_tx" not in free.text


def test_the_last_range_of_blocks_has_no_end() -> None:
    conditions = [part.condition for part in block_ranges(10, 3)]
    assert conditions == [
        "job.ctid >= '(0,0)' AND job.ctid < '(3,0)'",
        "job.ctid >= '(3,0)' AND job.ctid < '(6,0)'",
        "job.ctid >= '(6,0)'",
    ]
    assert len(block_ranges(2, 8)) == 2
    assert [part.condition for part in block_ranges(0, 4)] == ["job.ctid >= '(0,0)'"]


def test_ranges_of_ids_leave_nothing_out() -> None:
    parts = id_ranges(["m", "c", "m"])
    assert [(part.parameters.get("low"), part.parameters.get("high")) for part in parts] == [
        (None, "c"), ("c", "m"), ("m", None)]  # fmt: skip
    assert id_ranges([])[0].condition == "true"


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("sizes", [[0, 0], [1], [5, 0, 3], [0, 9, 4, 0], [2, 2, 2, 2]])
def test_each_block_of_each_day_is_in_one_part(sizes: list[int], parts: int) -> None:
    days = [Day(f"day_{at}", None, blocks) for at, blocks in enumerate(sizes)]
    found: dict[str, list[tuple[int, int | None]]] = {}
    ranges = list(day_ranges(days, parts))
    assert 1 <= len(ranges) <= parts
    for day, test in (one for part in ranges for one in part):
        start = int(test.split("('")[0].split("'(")[1].split(",")[0])
        end = int(test.rsplit("'(", 1)[1].split(",")[0]) if "<" in test else None
        found.setdefault(day.table, []).append((start, end))
    for day in days:
        borders = sorted(found[day.table], key=lambda one: one[0])
        assert borders[0][0] == 0
        assert borders[-1][1] is None
        assert all(before[1] == after[0] for before, after in itertools.pairwise(borders))


def test_days_that_cannot_hold_what_is_requested_for_are_not_read() -> None:
    days = [Day("job_event_default", None, 1), *(Day(f"job_event_2026010{n}", date(2026, 1, n), 1) for n in (1, 2, 3))]
    given = options(table="events", happenedFrom="2026-01-02T23:00:00-02:00", numPartitions="1")
    [query] = event_queries(given, given.selected(), "queuert", days)
    tables = [value for name, value in query.parameters.items() if name.startswith("table_")]
    assert tables == ['"queuert"."job_event_default"', '"queuert"."job_event_20260103"']
    default, day = query.text.split(" UNION ALL ")
    assert "happened_at < '2026-01-01 00:00:00+00'::timestamptz OR happened_at >= '2026-01-04 00:00:00+00'" in default
    assert "happened_at >= '2026-01-03 00:00:00+00'::timestamptz AND happened_at < '2026-01-04 00:00:00+00'" in day


def test_attempts_are_cut_by_job() -> None:
    given = options(table="attempts", numPartitions="3")
    assert [query.parameters["part"] for query in attempt_queries(given, given.selected(), "queuert")] == [0, 1, 2]


def as_sent(*moments: int | None) -> pa.Array:
    """Microseconds from the year 2000 on as the server sends them."""
    texts = [None if moment is None else "\\x" + (moment % 2**64).to_bytes(8).hex() for moment in moments]
    return pa.array(texts, pa.string())


NEW_CENTURY = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def since_2000(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - NEW_CENTURY) // MICROSECOND


FIRST, LAST = since_2000(datetime.min), since_2000(datetime.max)


def test_moments_are_those_of_calendars() -> None:
    found = moments(as_sent(2**63 - 1, LAST, LAST + 1, None, 0, -1, FIRST, FIRST - 1, -(2**63)))
    assert found.type == pa.timestamp("us", "UTC")
    assert found.to_pylist() == [
        None, datetime.max.replace(tzinfo=UTC), None, None, NEW_CENTURY,
        datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC), datetime.min.replace(tzinfo=UTC), None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("given", [(), (None,), (None, None, None), (5, None), (None, 5), (None, 5, None, 6, None)])
def test_moments_stay_in_their_places(given: tuple[int | None, ...]) -> None:
    wanted = [None if moment is None else NEW_CENTURY + moment * MICROSECOND for moment in given]
    for found in (moments(as_sent(*given)), moments(as_sent(7, None, *given)[2:])):
        assert found.type == pa.timestamp("us", "UTC")
        assert found.to_pylist() == wanted


def test_reading_loads_no_pandas() -> None:
    """Where it is installed, it takes a second, and each search for garbage in that process longer."""
    program = """if True:
        import sys, pyarrow as pa
        from queuert.spark.read.batch import CsvDecoder
        from queuert.spark.read.columns import Column, Kind
        decoder = CsvDecoder([Column("t", Kind.MOMENT, "t")], pa.schema([("t", pa.timestamp("us", "UTC"))]))
        [batch] = decoder.decode([bytes.fromhex("5c78") + b"7fffffffffffffff" + b"\\n" * 2])
        assert batch.column(0).null_count == 2
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_decoding() -> None:
    columns = [Column("s", Kind.TEXT, "s"), Column("n", Kind.LONG, "n"), Column("t", Kind.MOMENT, "t"),
               Column("a", Kind.TEXTS, "a")]  # fmt: skip
    schema = pa.schema(
        [("s", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("a", pa.list_(pa.string()))]
    )
    first, now, last = as_sent(FIRST, since_2000(datetime(2026, 11, 21, 12, 34, 22, 1)), LAST).to_pylist()
    text = (
        f'\x1ea\nb\r\x1e\x1e\x1f,"\x1e\x1f9223372036854775807\x1f{now}\x1f["x,\\"", null]\n'
        f"\x1e\x1e\x1f\x1f{first}\x1f[]\n"
        f"\x1f\x1f{last}\x1f\n"
        "NULL\x1f-1\x1f\x1f\n"
        "żółw 🐢\x1f0\x1f\x1f\n"
    )
    [batch] = CsvDecoder(columns, schema).decode([text.encode()])
    assert batch.schema == schema
    assert batch.to_pydict() == {
        "s": ['a\nb\r\x1e\x1f,"', "", None, "NULL", "żółw 🐢"],
        "n": [2**63 - 1, None, None, -1, 0],
        "t": [datetime(2026, 11, 21, 12, 34, 22, 1, UTC), datetime(1, 1, 1, tzinfo=UTC),
              datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None, None],
        "a": [["x,\"", None], [], None, None, None],
    }  # fmt: skip


def test_a_text_may_begin_with_a_byte_order_mark() -> None:
    """Also the first one of a chunk, where readers of CSV remove it."""
    decoder = CsvDecoder([Column("s", Kind.TEXT, "s")], pa.schema([("s", pa.string())]))
    batches = decoder.decode(["\ufeffa\n\ufeffb\n".encode(), memoryview("\ufeff\ufeffc\n".encode())])
    assert [batch.to_pydict()["s"] for batch in batches] == [["\ufeffa", "\ufeffb"], ["\ufeff\ufeffc"]]


def test_long_rows_are_never_more_than_arrow_reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_export, "CHUNK_BYTES", 100)
    monkeypatch.setattr(copy_export, "_LONG_BYTES", 1_000)
    lengths = [1] * 50 + [200] * 40 + [3_000] + [1] * 500 + [90] * 64
    given = [bytes([at % 256]) * length for at, length in enumerate(lengths)]
    chunks = [bytes(chunk) for chunk in copy_export._joined(map(memoryview, given))]
    assert b"".join(chunks) == b"".join(given)
    assert max(len(chunk) for chunk in chunks if len(chunk) != 3_000) <= 1_100


def test_a_task_waits_for_a_standby_that_lags_behind_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server on which the read was planned had these transactions; without them rows would be missing."""
    horizons: list[int] = []

    def state(horizon: int, *, standby: bool = True) -> LogState:
        return LogState(horizon, horizon, 0, "1", "1", 1, standby, known=False)

    def seen(session: object) -> LogState:
        return state(horizons.pop(0))

    session = cast("BulkSession", None)
    monkeypatch.setattr("queuert.spark.read.batch.log_state", seen)
    horizons[:] = [5, 6, 7, 8]
    wait_for_standby(session, 7)
    assert horizons == [8]
    monkeypatch.setattr("queuert.spark.read.batch.CATCH_UP", 0.0)
    horizons[:] = [6]
    with pytest.raises(StateUnavailableError, match=r"must have all transactions below 7, .* those below 6 after 0 s"):
        wait_for_standby(session, 7)
    monkeypatch.setattr("queuert.spark.read.batch.log_state", lambda session: state(6, standby=False))
    wait_for_standby(session, 7)  # What a primary does not have was lost, which others look for.


def test_a_batch_of_a_stream_needs_the_transaction_of_its_last_event() -> None:
    query = Query("SELECT 1", {})
    assert EventSlice(query, 1, Offset(9, 0, "1")).below == 9
    assert EventSlice(query, 1, Offset(9, 3, "1")).below == 10


def test_a_single_column_of_nulls() -> None:
    decoder = CsvDecoder([Column("s", Kind.TEXT, "s")], pa.schema([("s", pa.string())]))
    assert [batch.to_pydict() for batch in decoder.decode([b"\n\nx\n\n", b"\n", b"\x1e\x1e\n"])] == [
        {"s": [None, None, "x", None]}, {"s": [None]}, {"s": [""]}]  # fmt: skip


def test_columns_in_the_order_requested_for() -> None:
    assert [column.name for column in chosen_columns("jobs", ["status", "id"])] == ["status", "id"]


def test_offsets_go_there_and_back() -> None:
    offset = Offset(2**40, 7, "7500000000000000001")
    assert Offset.parse(offset.as_dict()) == offset
    with pytest.raises(OffsetError, match="must be one of the event log"):
        Offset.parse({"tx": 1})
    with pytest.raises(OffsetError, match="another cluster"):
        offset.check_system("1")


@pytest.mark.parametrize("parts", [1, 2, 3, 10])
@pytest.mark.parametrize(("start", "end"), [((5, 3), (5, 9)), ((5, 3), (9, 0)), ((5, 0), (6, 2)), ((1, 1), (100, 4))])
def test_a_range_in_parts_is_the_range(start: tuple[int, int], end: tuple[int, int], parts: int) -> None:
    low, high = Offset(*start, "s"), Offset(*end, "s")
    cut = split(low, high, parts)
    assert cut[0][0] == low
    assert cut[-1][1] == high
    assert len(cut) <= parts
    assert all(one[1] == other[0] and one[0] < one[1] for one, other in itertools.pairwise(cut))
    assert split(high, low, parts) == [] == split(low, low, parts)
