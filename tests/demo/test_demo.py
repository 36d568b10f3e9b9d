"""The demo as it is run: processes, a real kill, and the proof."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psycopg
import pytest

from queuert.cli import main
from queuert.spark.java import JavaMissingError, find_java

MANY = "200"
"""Files that two workers are busy with for three seconds. Somebody is killed half way: a second and a half are left."""
FEW = 12
SMALL = ("--no-spark", "--files", str(FEW), "--lease", "1", "--workers", "1", "--concurrency", "1")
"""A small run, of one worker with one slot, that takes as long."""


def leftovers(temporary: Path) -> list[str]:
    """What is left in the directory, but for a copy of Postgres that is kept for the next start."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("queuert-pg-")]


@contextlib.contextmanager
def demo(temporary: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A demo that runs, in a session of its own as on a terminal of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", "dev", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # Not SIGKILL: it has a server and workers to stop.
        process.terminate()
        process.communicate()


def run(temporary: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code and the output of a whole run."""
    with demo(temporary, *arguments) as process:
        output, errors = process.communicate()
        return process.returncode, output, errors


def figures(output: str) -> Mapping[str, str]:
    """The lines of the tables, by their names."""
    return dict(re.findall(r"^  (\S.*?)  +(\S.*)$", output, re.MULTILINE))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def require_proof(output: str, files: int) -> None:
    """See that a worker was killed with jobs in its hands, that they were repeated, and that the proof holds."""
    found = figures(output)
    held = re.search(r"killed \(SIGKILL\) at \d+ of \d+ files: it held (\d+) running jobs", output)
    assert held is not None
    assert int(held[1]) >= 1
    assert found["files"].startswith(f"{files} ")
    assert found["chains completed"] == str(files + 1)
    assert int(found["attempts repeated after the kill"]) >= 1
    assert int(found["attempts"]) == int(found["jobs"]) + int(found["attempts repeated after the kill"])
    for check in (
        "chains started, but not completed",
        "effects committed twice",
        "effects missing",
        "jobs left running",
    ):
        assert found[check] == "0  ok"
    assert "The proof holds" in output


@pytest.mark.quick
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_run_with_a_kill(temporary: Path) -> None:
    report = temporary / "report.md"
    code, output, errors = run(temporary, "--no-spark", "--files", MANY, "--lease", "1", "--report", str(report))
    assert (code, errors) == (0, ""), output
    require_proof(output, int(MANY))
    assert "## Most imported" in report.read_text("utf-8")
    page = temporary / "report-run.html"
    assert f"run: {page}" in output
    assert "was killed: it held" in page.read_text("utf-8")
    report.unlink()
    page.unlink()
    assert leftovers(temporary) == []


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_run_with_spark(temporary: Path) -> None:
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    report, history = temporary / "report.md", temporary / "report.html"
    code, output, errors = run(temporary, "--files", MANY, "--lease", "1", "--report", str(report))
    assert (code, errors) == (0, ""), output
    require_proof(output, int(MANY))
    found = figures(output)
    for phase in ("starting, to read the files", f"writing a chain for each of {MANY} files", "summing up the answers"):
        assert f"Spark is {phase}" in output
    assert "read by Spark" in found["files"]
    assert found["answers that Spark got, but the workers did not write"] == "0  ok"
    assert f"history: {history}" in output
    page = history.read_text("utf-8")
    assert {name for name in ("measure", "index", "report") if f">{name}<" in page} == {"measure", "index", "report"}
    report.unlink()
    history.unlink()
    (temporary / "report-run.html").unlink()
    assert leftovers(temporary) == []


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_on_a_given_database_it_leaves_nothing(temporary: Path, bare_dsn: str) -> None:
    code, output, errors = run(temporary, *SMALL, "--url", bare_dsn)
    assert (code, errors) == (0, ""), output
    require_proof(output, FEW)
    with psycopg.connect(bare_dsn) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'queuert_demo'").fetchall() == []
    assert leftovers(temporary) == []


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_what_is_kept_can_be_looked_at_and_is_not_overwritten(temporary: Path, bare_dsn: str) -> None:
    code, output, _ = run(temporary, *SMALL, "--url", bare_dsn, "--keep")
    assert code == 0
    assert "DROP SCHEMA queuert_demo CASCADE" in output
    with psycopg.connect(bare_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM queuert_demo.effect").fetchone() == (FEW + 1,)
    code, output, errors = run(temporary, *SMALL, "--url", bare_dsn)
    assert code == 1
    assert errors.count("\n") == 1
    assert "schema queuert_demo already exists" in errors
    with psycopg.connect(bare_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM queuert_demo.effect").fetchone() == (FEW + 1,)


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_the_kept_server_starts_as_it_says(temporary: Path) -> None:
    code, output, _ = run(temporary, *SMALL, "--keep")
    assert code == 0
    command = re.search(r"start the server with: (.*)", output)
    assert command is not None
    with subprocess.Popen(shlex.split(command[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = ""
        while "(" not in address:
            address += server.stdout.read(1)
        with psycopg.connect(address.rstrip(" (")) as connection:
            assert connection.execute("SELECT count(*) FROM queuert_demo.effect").fetchone() == (FEW + 1,)
        server.communicate("\n")
    (kept,) = leftovers(temporary)
    assert "report.md" in {path.name for path in (temporary / kept).iterdir()}


@pytest.mark.fault
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["demo-1", "driver"])
def test_a_process_that_dies_unasked_ends_the_demo(name: str, temporary: Path) -> None:
    with demo(temporary, "--no-spark") as process:
        assert process.stdout is not None
        seen = ""
        while "driver started" not in seen:
            seen += process.stdout.readline()
        child = re.search(rf"{name} started: process (\d+)", seen)
        assert child is not None
        os.kill(int(child[1]), signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert errors.startswith(f"queuert: {name} ended unexpectedly with exit code -9: ")
    assert errors.count("\n") == 1
    assert leftovers(temporary) == []


@pytest.mark.fault
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("driver started", signal.SIGINT),
        ("files found", signal.SIGTERM),
        ("killed", signal.SIGINT),
    ],
)
def test_interrupted_it_leaves_nothing_behind(temporary: Path, moment: str, number: signal.Signals) -> None:
    with demo(temporary, "--no-spark", "--files", MANY, "--lease", "1") as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if moment in line:
                break
        process.send_signal(number)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "queuert: interrupted\n"), seen
    workers = [int(pid) for pid in re.findall(r"started: process (\d+)", seen)]
    assert len(workers) >= 2
    assert not any(is_alive(pid) for pid in workers)
    assert leftovers(temporary) == []


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--lease", "0.1"], 2, "--lease"),
        (["--report", "/no/such/directory/report.md"], 2, "no directory"),
        (["--url", "postgresql://me:hunter2@127.0.0.1:1/x"], 3, "check the address"),
        (["--url", "mysql://me:hunter2@host/x"], 2, "libpq"),
    ],
)
def test_what_cannot_work_is_one_line(
    arguments: Sequence[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "demo", "--no-spark", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("queuert: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err
    assert "hunter2" not in captured.err


def test_signals_are_given_back_after_a_failure() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["dev", "demo", "--no-spark", "--url", "postgresql://127.0.0.1:1/x"]) == 3
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_without_pyspark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("queuert.demo.stage.find_spec", lambda name: None)
    assert main(["dev", "demo"]) == 3
    assert "queuert[spark]" in capsys.readouterr().err
