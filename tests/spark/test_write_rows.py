"""Rows on their way from Arrow to COPY, options and columns: without a session."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import BaseModel, create_model
from pyspark.sql.types import StructType

from queuert import JobType
from queuert.codecs import PayloadFormat, ZlibCodec
from queuert.ids import new_id
from queuert.spark.errors import BadRowsError, SparkColumnError, SparkOptionError, found_in
from queuert.spark.options import ConnectionOptions, Fence, WriteOptions, parse_options
from queuert.spark.write.columns import Columns, find_columns
from queuert.spark.write.copy_text import copy_text, new_ids
from queuert.spark.write.json_text import json_text
from queuert.spark.write.validation import RowChecker

TEXTS = ["plain", 'quote " and \\ back', "tab\tnewline\nreturn\r", "\x01\x1f", "é ☃ \U0001f600", "", None, "\\N", "{}"]

VALUES: list[tuple[Any, list[Any]]] = [
    (pa.string(), TEXTS),
    (pa.int64(), [1, -(2**63), None]),
    (pa.float64(), [1.5, 1e300, -0.0, None]),
    (pa.bool_(), [True, False, None]),
    (pa.null(), [None, None]),
    (pa.list_(pa.string()), [["a", None, 'b"'], [], None, ["c"]]),
    (pa.list_(pa.list_(pa.int64())), [[[1], [], None], None, [[2, 3]]]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
    ),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1), ('"', None)], None, []]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_json_is_what_json_would_be(kind: Any, values: list[Any]) -> None:
    array = pa.array(values, kind)
    wanted = [dict(one) if pa.types.is_map(kind) and one is not None else one for one in values]
    assert [json.loads(one) for one in json_text(array).to_pylist()] == wanted
    assert [json.loads(one) for one in json_text(array.slice(1)).to_pylist()] == wanted[1:]


def test_moments_are_utc_and_decimals_keep_their_digits() -> None:
    moment = pa.array([datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC)], pa.timestamp("us", "Asia/Tokyo"))
    assert json_text(moment).to_pylist() == ['"2026-05-01T12:00:00.000005Z"']
    assert json_text(pa.array([Decimal("1.50")])).to_pylist() == ['"1.50"']
    assert json_text(pa.array([date(2026, 5, 1)])).to_pylist() == ['"2026-05-01"']


def test_copy_reads_what_is_written(dsn: str) -> None:
    lists = [[text, "x"] for text in TEXTS]
    moments = [datetime(1, 1, 2, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)] * 3
    columns = [
        pa.array(range(len(TEXTS))),
        pa.array(TEXTS),
        pa.array(lists),
        pa.array(moments, pa.timestamp("us", "UTC")),
    ]
    sliced = [column.slice(2) for column in columns]
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE TEMP TABLE seen (n int, text text, list text[], moment timestamptz)")
        with connection.cursor().copy("COPY seen FROM STDIN") as copy:
            copy.write(copy_text(columns))
            copy.write(copy_text(sliced))
        rows = connection.execute("SELECT text, list, moment FROM seen ORDER BY n").fetchall()
    wanted = list(zip(TEXTS, lists, moments, strict=True))
    assert rows == sorted([*wanted, *wanted[2:]], key=lambda row: wanted.index(row))


def test_new_ids_are_uuids_of_version_7() -> None:
    ids = new_ids(5_000).to_pylist()
    assert len(set(ids)) == 5_000
    assert {(len(one), one[14], one[19]) for one in ids} == {(36, "7", "8")}
    assert ids[0] < ids[300] < ids[4_999]
    assert abs(int(ids[0][:8], 16) - int(new_id()[:8], 16)) <= 1


class Model(BaseModel):
    n: int
    when: datetime | None = None


model: JobType[Model, None] = JobType("model", input=Model, output=None)


def check(job_type: JobType[Any, Any] | None, **columns: Any) -> list[str | None]:
    """What is wrong with each row."""
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    fields = tuple(name for name in columns if name not in _SETTINGS)
    is_text = "input" in columns
    found = Columns(frozenset(columns) & _SETTINGS, () if is_text else fields, is_text)
    checked = RowChecker(found, "t", job_type).check(batch)
    assert len(checked.good) + len(checked.bad) == batch.num_rows == len(checked.columns[0]) + len(checked.bad)
    return [checked.bad.get(row) for row in range(batch.num_rows)]


_SETTINGS = frozenset({"id", "deduplication_key", "limit_key", "priority", "blocked_by"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": 1', "input"),
        ('{"n": "\\u0000"}', "NUL"),
        ('{"n": "\\ud800"}', "input"),
        ("[" * 100 + "]" * 100, "nested deeper"),
        ('"' + "x" * 2_000_000 + '"', "got 2000002"),
        ("9" * 400, "digits"),
        ("1e999", "digits"),
        ("NaN", "input"),
        ("1 2", "input"),
        ("", "input"),
        ('{"queuert.codec": ["zlib"], "queuert.payload": "eA=="}', "zlib"),
    ],
)
def test_json_that_no_store_takes_is_found(text: str, reason: str) -> None:
    bad = check(None, input=["1", text, "[2]"])
    assert (bad[0], bad[2]) == (None, None)
    assert reason in str(bad[1])


@pytest.mark.parametrize("text", ["1", '"\\\\u0000"', '"nan"', "{}", "[1e300]", '{"a":' + "9" * 300 + "}", None])
def test_json_that_looks_like_trouble_passes(text: str) -> None:
    assert check(None, input=[text, "1"]) == [None, None]


def test_columns_that_no_store_takes_are_found() -> None:
    assert check(None, n=[1.0, float("nan"), float("inf")])[0] is None
    assert all(check(None, n=[float("nan"), float("-inf")]))
    assert "NUL" in str(check(None, n=["a\0b"]))
    assert "got 600" in str(check(None, n=[1], id=["x" * 600]))
    assert "bytes" in str(check(None, n=[1], id=["é" * 511]))
    assert "empty" in str(check(None, n=[1], limit_key=[""]))
    assert "NUL" in str(check(None, n=[1], deduplication_key=["a\0"]))
    assert "priority" in str(check(None, n=[1], priority=[1_000_001]))
    assert "chain id" in str(check(None, n=[1, 2], blocked_by=[["a", ""], None])[0])


def test_rows_are_checked_by_the_model() -> None:
    assert check(model, n=[1, 2], when=["2026-05-01T00:00:00Z", None]) == [None, None]
    assert "input.n" in str(check(model, input=['{"n": "x"}']))


def test_a_format_is_applied_to_each_row() -> None:
    packed: JobType[Model, None] = JobType(
        "packed", input=Model, output=None, format=PayloadFormat(codecs=[ZlibCodec()])
    )
    batch = pa.record_batch({"n": pa.array([1, 2])})
    checked = RowChecker(Columns(frozenset(), ("n",)), "packed", packed).check(batch)
    texts = checked.columns[-1].to_pylist()
    assert [packed.decode_input(one).n for one in texts] == [1, 2]
    assert "queuert.codec" in texts[0]


def schema(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


@pytest.mark.parametrize(
    "ddl",
    ["n int, n string", "id int, n int", "blocked_by string", "input string, n int", "b binary", "m map<int,int>",
     "t timestamp_ntz", "schedule_at date, n int", "v variant", "a array<struct<b: binary>>"],
)  # fmt: skip
@pytest.mark.usefixtures("spark")
def test_columns_that_make_no_job_are_refused(ddl: str) -> None:
    with pytest.raises(SparkColumnError):
        find_columns(schema(ddl), None)


@pytest.mark.parametrize(
    "name", ["ID", "Priority", "SCHEDULE_AT", "Deduplication_Key", "LIMIT_KEY", "Blocked_By", "INPUT"]
)
@pytest.mark.usefixtures("spark")
def test_a_setting_in_capitals_is_refused(name: str) -> None:
    """As a field of the input, what it says would be lost. It is one if the model says so."""
    meant = name.lower()
    what = "input" if name == "INPUT" else "setting"
    with pytest.raises(
        SparkColumnError, match=f"column '{name}' must be named '{meant}', the {what} of a job: rename it"
    ):
        find_columns(schema(f"{name} string, n int"), None)
    with pytest.raises(SparkColumnError, match=f"'{meant}'"):
        find_columns(schema(f"{name} string, n int"), model)
    declared = create_model("Declared", **{name: (str, ...)})  # type: ignore[call-overload]
    named: JobType[Any, None] = JobType("named", input=declared, output=None)
    assert find_columns(schema(f"{name} string"), named) == Columns(frozenset(), (name,))


@pytest.mark.usefixtures("spark")
def test_a_setting_in_capitals_beside_the_setting() -> None:
    """Renamed, there would be two of one name."""
    with pytest.raises(SparkColumnError, match=r"'ID' must be named 'id', .*: drop it, as there is a column 'id' too"):
        find_columns(schema("id string, ID string"), None)


@pytest.mark.usefixtures("spark")
def test_columns_are_matched_with_the_model() -> None:
    assert find_columns(schema("n int, priority int"), model) == Columns(frozenset({"priority"}), ("n",))
    with pytest.raises(SparkColumnError, match="nn"):
        find_columns(schema("nn int"), model)

    class WithId(BaseModel):
        id: int

    ambiguous: JobType[WithId, None] = JobType("ambiguous", input=WithId, output=None)
    with pytest.raises(SparkColumnError, match="struct"):
        find_columns(schema("id string"), ambiguous)
    assert find_columns(schema("input struct<id: int>"), ambiguous).fields == ()


def test_options_take_any_case_and_tell_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "JOBTYPE": "t",
        "writeid": "w",
        "url": "postgresql://u:secret@h/d",
        "notify": "false",
        "fence": "a:b:3/" + _TOKEN,
    }
    options = parse_options(WriteOptions, given)
    assert (options.job_type, options.write_id, options.notify) == ("t", "w", False)
    assert options.parsed_fence == Fence("a:b", 3, _TOKEN)
    assert "secret" not in repr(options)
    for broken in ({}, {"jobType": "t", "urll": "x"}, {"jobType": "t", "url": "x", "service": "y"},
                   {"jobType": "t", "onConflict": "x"}, {"jobType": "t", "writeId": ""}):  # fmt: skip
        with pytest.raises(SparkOptionError) as caught:
            parse_options(WriteOptions, broken)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("MY_URL", "postgresql://h/d?schema=jobs")
    assert parse_options(ConnectionOptions, {"urlEnv": "MY_URL"}).address() == ("postgresql://h/d", "jobs")
    monkeypatch.delenv("MY_URL")
    with pytest.raises(SparkOptionError, match="MY_URL"):
        parse_options(ConnectionOptions, {"urlEnv": "MY_URL"}).address()
    with pytest.raises(SparkOptionError, match="embedded"):
        parse_options(ConnectionOptions, {"url": "embedded://"}).address()
    assert parse_options(ConnectionOptions, {"service": "it's"}).address() == (r"service='it\'s'", "queuert")


_TOKEN = "0e0c1dca-4fd8-4a2c-9a5e-3f1c8a2d9b77"


def test_errors_are_found_in_what_spark_raises() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort Python data source write: "
        'Traceback (most recent call last):\n  File "/x/queuert/spark/write/batch.py", line 178, in commit\n'
        "queuert.spark.errors.BadRowsError: 3 of 4 rows\n\nSQLSTATE: 38000"
    )
    found = found_in(RuntimeError(text))
    assert isinstance(found, BadRowsError)
    assert str(found) == "3 of 4 rows"
    assert found_in(RuntimeError("something else")) is None
