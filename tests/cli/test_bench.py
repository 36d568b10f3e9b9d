"""``queuert dev bench``: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psycopg
import pytest

from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.errors import ConfigurationError
from queuert.testing.bench import BenchSettings
from queuert.testing.bench.report import BenchReport, Row
from queuert.testing.bench.scratch import PREFIX

_NAMES = ["start_single", "start_batches", "drain", "latency"]


def _schemas(dsn: str) -> list[str]:
    """The schemas of runs that are there."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", [PREFIX])
        return [row[0] for row in rows]


def _bench(dsn: str, *more: str) -> int:
    return main(["dev", "bench", "--url", dsn, "--jobs", "100", "--concurrency", "10", *more])


def test_it_prints_both_and_their_ratio_and_drops_its_schema(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(bare_dsn, "--rounds", "2") == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("PostgreSQL ")
    titles = ["start one, jobs/s", "start 1,000 a call, jobs/s", "drain, jobs/s", "start to handler, ms"]
    assert [line[:32].strip() for line in lines[3:]] == titles
    assert printed.err.count("round 2/2") == len(_NAMES)
    assert _schemas(bare_dsn) == []


def test_as_json_it_has_medians_and_spreads(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(bare_dsn, "--rounds", "1", "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["settings"] == {"jobs": 100, "rounds": 1, "concurrency": 10}
    assert set(reported["server_settings"]) == {"fsync", "synchronous_commit", "full_page_writes", "shared_buffers"}
    assert [row["name"] for row in reported["results"]] == _NAMES
    for row in reported["results"]:
        for one in ("ours", "bare", "ours_to_bare"):
            assert set(row[one]) == {"median", "low", "high"}
            assert row[one]["median"] > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("moment", ["start one", "drain", "start to handler"])
def test_after_ctrl_c_its_schema_is_gone(bare_dsn: str, moment: str) -> None:
    # Whoever runs the tests in the background has them ignore Ctrl-C, and their children with them.
    heeding = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    calling = "from queuert.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["dev", "bench", "--url", bare_dsn, "--jobs", "100", "--rounds", "100000"]
    command = [sys.executable, "-c", heeding + calling, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip().endswith(moment):
                break
        assert len(_schemas(bare_dsn)) == 1
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=150)
    assert process.returncode == Exit.INTERRUPTED
    # Not always the last line: Python may complain of an event loop that the interruption left half made.
    assert "queuert: interrupted" in errors.splitlines()
    assert _schemas(bare_dsn) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--url", "redis://127.0.0.1:1/0"], Exit.USAGE),
        (["--url", "no address"], Exit.USAGE),
        (["--jobs", "0"], Exit.USAGE),
        (["--jobs", "9"], Exit.USAGE),
        (["--rounds", "few"], Exit.USAGE),
        (["--url", "postgresql://nobody@127.0.0.1:1/none"], Exit.UNAVAILABLE),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "bench", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("queuert: ")


@pytest.mark.parametrize("wrong", [{"jobs": 9}, {"rounds": 0}, {"concurrency": 0}])
def test_settings_that_are_too_small_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be"):
        BenchSettings(**wrong)


def test_a_ratio_says_how_many_times_as_good_ours_is() -> None:
    faster = Row("drain", "drain", "jobs/s", ours=[50.0, 200.0], bare=[100.0, 100.0])
    slower = Row("latency", "latency", "ms", more_is_better=False, ours=[4.0], bare=[2.0])
    report = BenchReport("18", {"rounds": 2}, {}, [faster, slower]).as_json()
    assert [row["ours_to_bare"]["median"] for row in report["results"]] == [1.25, 0.5]
    assert report["results"][0]["ours_to_bare"]["low"] == 0.5
