"""Values of options, and columns, that are refused before anything is asked of a server: without a session."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.spark import enqueue
from queuert.spark.datasource import QueuertDataSource
from queuert.spark.errors import SparkColumnError, SparkOptionError
from queuert.spark.history.files import check_path
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.read.options import ReadOptions, StreamReadOptions
from queuert.spark.write.columns import find_columns
from queuert.spark.write.stream import write_id_of

URL = "postgresql://u:secret@h/d"
NOTHING: Any = None
"""Instead of a DataFrame, which nobody gets as far as to look at."""


def refused(**given: Any) -> str:
    with pytest.raises(SparkOptionError) as caught:
        enqueue(NOTHING, "resize", **{"url": URL, **given})
    assert "secret" not in str(caught.value)
    return str(caught.value)


def test_an_empty_write_id_is_no_wish_for_a_new_one() -> None:
    assert "writeId" in refused(write_id="")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"jobType": "other"}, "jobType"),
        ({"jobtype": "other"}, "jobtype"),
        ({"write_id": "a1", "writeid": "b1"}, "writeid"),
        ({"writeId": "b1", "writeid": "b2"}, "writeid"),
        ({"URL": "postgresql://other:secret@h/d"}, "URL"),
    ],
)
def test_an_option_that_is_given_twice_must_be_the_same(given: dict[str, str], name: str) -> None:
    reported = refused(**given)
    assert name in reported
    assert "must have one value" in reported


def test_an_option_may_be_given_twice_in_two_spellings() -> None:
    with pytest.raises(AttributeError, match="schema"):  # all options are right: now the DataFrame is looked at
        enqueue(NOTHING, "resize", url=URL, jobtype="resize", write_id="w", writeid="w", notify=False, NOTIFY="false")
    with pytest.raises(SparkOptionError, match="must have one value"):
        parse_options(WriteOptions, {"jobType": "t", "writeId": "a", "writeid": "b"})


def written(**given: str) -> str:
    with pytest.raises(SparkOptionError) as caught:
        parse_options(WriteOptions, {"jobType": "t", **given})
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stagingTtl", "1e15"), ("stagingTtl", "1e300"), ("stagingTtl", "inf"), ("stagingTtl", "nan"),
        ("statementTimeout", "2678400"), ("lockTimeout", "2147484"), ("connectionCheckInterval", "inf"),
        ("traceContext", "00-\0"), ("traceContext", ""), ("traceContext", "a\nb"), ("traceContext", "é"),
    ],
)  # fmt: skip
def test_values_that_no_server_takes_are_refused_at_once(name: str, value: str) -> None:
    assert written(**{name: value}).startswith(name)


def test_values_at_the_limits_are_taken() -> None:
    longest = {"statementTimeout": "2147483", "stagingTtl": "3153600000", "traceContext": "00-trace"}
    options = parse_options(WriteOptions, {"jobType": "t", **longest})
    assert options.statement_timeout * 1_000 <= 2**31 - 1
    assert options.trace_context == "00-trace"


@pytest.mark.parametrize("moment", ["-5", "+5", "-5.5", "1e9", " 12 ", "1767225600", "inf", "-nan"])
def test_a_number_is_no_moment(moment: str) -> None:
    with pytest.raises(SparkOptionError, match="createdFrom must be a time in ISO 8601"):
        parse_options(ReadOptions, {"createdFrom": moment})


@pytest.mark.parametrize("status", ["nosuch", "Ready", "ready,nosuch", "open"])
def test_a_status_that_no_job_has_is_refused(status: str) -> None:
    known = "blocked, scheduled, ready, running, continued, completed, failed, cancelled"
    for table in ("jobs", "events"):
        with pytest.raises(SparkOptionError, match=f"statuses must be among .*{known}"):
            parse_options(ReadOptions, {"table": table, "statuses": status})
    with pytest.raises(SparkOptionError, match=f"statuses must be among .*{known}"):
        parse_options(StreamReadOptions, {"table": "events", "statuses": status})


@pytest.mark.parametrize("status", ["ready", "Open", "nosuch"])
def test_a_status_that_no_chain_has_is_refused(status: str) -> None:
    with pytest.raises(SparkOptionError, match=r"statuses must be among .*open, completed, failed, cancelled"):
        parse_options(ReadOptions, {"table": "chains", "statuses": status})


def test_a_kind_that_no_event_has_is_refused() -> None:
    for kind in (ReadOptions, StreamReadOptions):
        with pytest.raises(SparkOptionError, match=r"kinds must be among created, .*deleted, stale, got 'Created'"):
            parse_options(kind, {"table": "events", "kinds": "failed,Created"})


def test_all_that_there_is_can_be_requested_for() -> None:
    jobs, kinds = ",".join(JobStatus), ",".join(EventKind)
    assert parse_options(ReadOptions, {"statuses": jobs}).statuses == tuple(JobStatus)
    chains = parse_options(ReadOptions, {"table": "chains", "statuses": ",".join(ChainStatus)})
    assert chains.statuses == tuple(ChainStatus)
    events = {"table": "events", "statuses": jobs, "kinds": kinds}
    assert parse_options(ReadOptions, events).kinds == tuple(EventKind)
    assert parse_options(StreamReadOptions, events).statuses == tuple(JobStatus)


def test_what_the_longest_sink_writes_can_be_read() -> None:
    sink = "s" * 256
    assert parse_options(WriteOptions, {"jobType": "t", "sinkId": sink}).sink_id == sink
    written = write_id_of(sink, 2**63 - 1)
    assert parse_options(ReadOptions, {"writeId": written}).write_id == written
    with pytest.raises(SparkOptionError, match="writeId"):
        parse_options(ReadOptions, {"writeId": written + "1"})


@pytest.mark.parametrize("name", ["types", "chainIds", "writeId"])
def test_text_that_no_store_has_is_not_looked_for(name: str) -> None:
    with pytest.raises(SparkOptionError, match=f"{name}.*NUL"):
        parse_options(ReadOptions, {name: "a\0"})


@pytest.mark.parametrize("path", ["/x/o[1]", "/x/o{a,b}", "/x/*", "/x/o?", "/x/o]", "/x\\y"])
def test_a_history_has_a_place_that_is_no_pattern(path: str) -> None:
    with pytest.raises(SparkOptionError, match="output must be"):
        check_path(path)


def test_a_history_may_have_a_place_of_any_other_name() -> None:
    check_path("/x/o sp%20#x/é-(1),!")


def test_a_path_says_nothing_to_a_queue() -> None:
    source = QueuertDataSource({"jobType": "t", "table": "events", "path": "/x", "url": URL})
    schema = StructType([StructField("n", IntegerType())])
    for use in (
        lambda: source.writer(schema, overwrite=False),
        lambda: source.streamWriter(schema, overwrite=False),
        lambda: source.reader(schema),
        lambda: source.streamReader(schema),
    ):
        with pytest.raises(SparkOptionError, match=r"path must not be set: .*save\(\), start\(\) or load\(\) without"):
            use()


def test_two_fields_of_one_name_make_no_object() -> None:
    twice = StructType([StructField("a", IntegerType()), StructField("a", StringType())])
    for nested in (twice, ArrayType(twice), MapType(StringType(), twice), StructType([StructField("in", twice)])):
        for name in ("s", "input"):
            with pytest.raises(SparkColumnError, match=f"fields of column '{name}'.* unique, got 'a' twice"):
                find_columns(StructType([StructField(name, nested)]), None)
