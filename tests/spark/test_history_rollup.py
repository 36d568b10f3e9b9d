"""Rollups of the event log: the figures are those that the database computes, however often they are made."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from queuert.spark.errors import SparkOptionError
from queuert.spark.history import (
    HistoryBusyError,
    HistoryOutputError,
    RollupResult,
    run_archive,
    run_history,
    run_report,
    run_rollup,
)
from tests.spark.history_support import LOG, add_chains, at_step, run
from tests.spark.read_support import add_event, connected
from tests.spark.support import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

BY_SQL = """
    SELECT type, to_char(happened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24') AS hour,
        count(*) FILTER (WHERE kind = 'started') AS started,
        count(*) FILTER (WHERE kind NOT IN ('started', 'created') AND worker IS NOT NULL) AS finished,
        count(*) FILTER (WHERE kind = 'completed') AS completed, count(*) FILTER (WHERE kind = 'retried') AS retried,
        count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE kind = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE kind = 'lease_expired') AS lease_losses,
        count(*) FILTER (WHERE kind = 'lease_expired' AND status = 'ready') AS reaped,
        percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - scheduled_at))
            FILTER (WHERE kind = 'started') AS wait,
        percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM happened_at - started_at))
            FILTER (WHERE kind NOT IN ('started', 'created', 'lease_expired') AND worker IS NOT NULL) AS run,
        (avg(attempt) FILTER (WHERE status IN ('completed', 'continued', 'failed', 'cancelled')))::float8 AS tries,
        max(attempt) FILTER (WHERE status IN ('completed', 'continued', 'failed', 'cancelled')) AS most
    FROM queuert.event WHERE happened_at < %s GROUP BY 1, 2 ORDER BY 1, 2
"""
FAILURES_BY_SQL = """
    SELECT type, to_char(happened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24') AS hour, error->>'kind' AS error_kind,
        error->>'type' AS error_type, count(*) AS failures, count(*) FILTER (WHERE status = 'failed') AS final,
        min(error->>'message') AS sample
    FROM queuert.event WHERE error IS NOT NULL AND happened_at < %s
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 NULLS FIRST
"""


def written(output: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a rollup, as anybody finds them in the files; each in the directory of its day."""
    found = []
    for path in (output / "rollups" / table).glob("date=*/*.parquet"):
        rows = pyarrow.parquet.ParquetFile(path).read().to_pylist()
        assert {f"date={row['hour']:%Y-%m-%d}" for row in rows} == {path.parent.name}
        found += rows
    return found


def check(dsn: str, output: Path, through: datetime) -> None:
    """The rollups are what the database says."""
    hours = {(row["type"], f"{row['hour']:%Y-%m-%d %H}"): row for row in written(output, "hourly")}
    reported = query(dsn, BY_SQL, through)
    assert sorted(hours) == [row[:2] for row in reported]
    assert len(hours) == len(written(output, "hourly"))
    names = ("started", "finished", "completed", "retried", "failed", "cancelled", "lease_losses", "reaped")
    for type, hour, *values in reported:
        row = hours[type, hour]
        wait, ran, tries, most = values[8:]
        assert [row[name] for name in names] == values[:8]
        assert row["per_second"] == pytest.approx(row["finished"] / 3600)
        figures = [row[f"{name}_{share}"] for name in ("wait", "run") for share in ("p50", "p95", "p99")]
        expected = [*(wait or [None] * 3), *(ran or [None] * 3), tries]
        for found, reported_value in zip([*figures, row["attempts_avg"]], expected, strict=True):
            assert found == (None if reported_value is None else pytest.approx(reported_value, rel=1e-9))
        assert row["attempts_max"] == most
    columns = ("type", "hour", "error_kind", "error_type", "failures", "final", "sample")
    failures = [tuple(row[name] for name in columns) for row in written(output, "failures")]
    failures = [(one[0], f"{one[1]:%Y-%m-%d %H}", *one[2:]) for one in failures]
    assert sorted(failures, key=lambda one: (*one[:3], one[3] or "")) == query(dsn, FAILURES_BY_SQL, through)


def roll(spark: SparkSession, dsn: str, output: Path) -> RollupResult:
    return run_rollup(spark, dsn, str(output), partitions=1)


def test_rollups(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """They are exact, and made anew for the days on which something came in late, and for no others."""
    run(dsn, LOG, count=300)
    with connected(dsn) as connection:
        add_event(connection, "now", "started", due=datetime.now(UTC), started=datetime.now(UTC))
    first = roll(spark, dsn, tmp_path)
    check(dsn, tmp_path, first.through)
    assert len(first.dates) >= 2
    assert first.rows == len(written(tmp_path, "hourly"))
    with connected(dsn) as connection, connection.transaction():
        connection.execute(
            b"INSERT INTO queuert.job_event (happened_at, kind, status, job_id, chain_id, chain_index, type,"
            b" chain_type, attempt, worker)"
            b" VALUES (now() - interval '26 hours', 'completed', 'completed', 'x', 'x', 0, 'a', 'a', 9, 'w')"
        )
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "rollups").rglob("*.*")}
        second = roll(spark, dsn, tmp_path)
        if second.through == first.through:  # no hour has ended meanwhile
            assert (second.dates, second.rows) == ((), 0)
            assert {path: path.stat().st_mtime_ns for path in (tmp_path / "rollups").rglob("*.*")} == files
        assert "a" not in {row["type"] for row in written(tmp_path, "hourly")}
    third = roll(spark, dsn, tmp_path)
    check(dsn, tmp_path, third.through)
    (late,) = query(dsn, "SELECT to_char(happened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day FROM queuert.event"
                         " WHERE job_id = 'x'")  # fmt: skip
    assert late in third.dates
    if third.through == first.through:
        assert list(third.dates) == [late]


@pytest.mark.quick
def test_hours_that_were_not_over(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """An hour that was not over when its events were passed by is written when it is; lost events are told of."""
    run(dsn, LOG, count=40)
    done = roll(spark, dsn, tmp_path)
    marks = tmp_path / "rollups/_watermarks"
    (last,) = marks.glob("*.json")
    mark = json.loads(last.read_text())
    for path in (tmp_path / "rollups").glob("*/date=*/*.parquet"):
        path.unlink()
    earlier = {**mark, "closed_to": (done.through - timedelta(hours=9)).isoformat()}
    (marks / "00000002.json").write_text(json.dumps(earlier))
    run(dsn, "UPDATE queuert.event_log SET dropped_tx = pg_current_xact_id()")
    again = roll(spark, dsn, tmp_path)
    check(dsn, tmp_path, again.through)
    assert again.lost


@pytest.mark.parametrize("ahead", [{"tx": 1_000_000}, {"timeline": 1}], ids=["lower_numbers", "another_timeline"])
def test_all_days_are_rolled_up_anew_after_a_failover(
    spark: SparkSession, dsn: str, tmp_path: Path, ahead: dict[str, int]
) -> None:
    """What is new may have lower numbers than the watermark, and some of what was rolled up may never have been."""
    run(dsn, LOG, count=40)
    roll(spark, dsn, tmp_path)
    (path,) = (tmp_path / "rollups/_watermarks").glob("*.json")
    mark = json.loads(path.read_text())
    later = {**mark, **{name: mark[name] + more for name, more in ahead.items()}}
    path.with_name("00000002.json").write_text(json.dumps(later))
    for written_before in (tmp_path / "rollups").glob("*/date=*/*.parquet"):
        written_before.unlink()
    again = roll(spark, dsn, tmp_path)
    check(dsn, tmp_path, again.through)
    assert not roll(spark, dsn, tmp_path).dates


class Page(HTMLParser):
    """What a page consists of, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "srcset")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_whole_run_and_report(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """The report has the figures, is well formed, and needs nothing else. Wrong options are refused beforehand."""
    output = tmp_path / "out"
    refused: tuple[dict[str, Any], ...] = (
        {"older_than": -1}, {"types": []}, {"types": ["no type!\x00"]}, {"partitions": 0}, {"batch": 0}, {"days": 0},
        {"nonsense": 1}, {"url_env": "X"}, {"older_than": float("nan")},
    )  # fmt: skip
    for options in refused:
        with pytest.raises(SparkOptionError):
            run_history(spark, dsn, str(output), **{"older_than": 0, **options})
    with pytest.raises(SparkOptionError):
        run_history(spark, dsn, "nowhere://x/y", older_than=0)
    assert not output.exists()
    run(dsn, LOG, count=80)
    run(
        dsn,
        'UPDATE queuert.job_event SET error = \'{"kind": "handler", "message": "<script>&"}\' WHERE error IS NOT NULL',
    )
    add_chains(dsn, 2)
    result = run_history(spark, dsn, str(output), older_than=0, partitions=1)
    assert [one.chains for one in result.archives] == [2]
    assert result.report.endswith("out/report.html")
    text = (output / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert (page.open, page.loads) == ([], [])
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert text.count("<svg") == 3 + 2 * 2
    assert "&lt;script&gt;&amp;" in text
    started = query(dsn, "SELECT count(*) FROM queuert.event WHERE kind = 'started' AND type = 'send'")[0]
    assert f"<td>send</td><td>{started}</td>" in text
    assert result.archives[0].run in text
    assert run_report(spark, str(output), days=1) == result.report

    def busy() -> None:
        with pytest.raises(HistoryBusyError):
            run_archive(spark, dsn, str(output), older_than=0)

    run_rollup(spark, dsn, str(output), on_progress=at_step("rollup.nothing", busy))
    identity = output / "_history.json"
    text = identity.read_text().replace('"queuert"', '"another"')
    identity.write_text(text)
    with pytest.raises(HistoryOutputError, match="cannot be read"):
        run_rollup(spark, dsn, str(output))
    (output / "._history.json.crc").unlink()
    with pytest.raises(HistoryOutputError, match="another"):
        run_rollup(spark, dsn, str(output))
