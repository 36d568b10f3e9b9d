"""``queuert worker``: finding the application, running it, and finish."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queuert import Client, JobType, JobTypes, PostgresState, after
from queuert.cli import build_parser, main
from queuert.cli.application import load, merged_job_types
from queuert.cli.exit_codes import UsageError
from queuert.cli.logs import JsonFormatter
from queuert.cli.worker import build
from queuert.errors import ConfigurationError, DuplicateJobTypeError
from queuert.jobs import ChainStatus
from queuert.observability.otel_tracing import OTelMiddleware
from queuert.worker import InProcessWorker, Processors

shout = JobType("shout", input=str, output=str)
probe = JobType("probe", input=str, output=str)
JOB_TYPES = JobTypes(shout, probe)

UNREACHABLE = "postgresql://me:hunter2@127.0.0.1:1/nowhere"

WAIT = 60.0
"""Seconds: a bound for the start of a worker's process, and for its end."""


@contextmanager
def worker_process(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A worker in the current directory; it has claimed its first notifications when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", "worker", *arguments],
        env={**os.environ, "QUEUERT_URL": dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(240)
def test_it_runs_jobs_keeps_its_health_file_and_stops_when_requested(
    dsn: str, application: str, tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    arguments = [
        "--name",
        "worker-1",
        "--concurrency",
        "2",
        "--shutdown-timeout",
        "5",
        "--health-file",
        str(health),
        "--log-json",
    ]
    with (
        worker_process(dsn, f"{application}:both", *arguments) as process,
        Client(PostgresState(dsn), JOB_TYPES) as client,
    ):
        assert client.start_chain(shout, "hello").result(timeout=WAIT) == "HELLO"
        assert client.start_chain(probe, str(health)).result(timeout=WAIT).startswith("worker-1-")
        assert main(["health", "--file", str(health)]) == 0
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=WAIT)
        assert process.returncode == 0
    assert not health.exists()
    entries = [json.loads(line) for line in log.splitlines()]
    completed = [entry for entry in entries if entry.get("queuert_event") == "AttemptCompleted"]
    assert {entry["queuert_type"] for entry in completed} == {"shout", "probe"}
    assert all(entry["queuert_worker"].startswith("worker-1-") for entry in completed)


@pytest.mark.timeout(240)
def test_control_c_stops_it_as_well(dsn: str, application: str) -> None:
    with (
        worker_process(dsn, f"{application}:made", "--log-level", "warning") as process,
        Client(PostgresState(dsn), JOB_TYPES) as client,
    ):
        assert client.start_chain(shout, "hello").result(timeout=WAIT) == "HELLO"
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=WAIT)
    assert process.returncode == 0
    assert log == ""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "modules"), [("asyncio", "asyncio."), ("uvloop", "uvloop")])
def test_the_event_loop_that_is_requested_for(name: str, modules: str, dsn: str, application: str) -> None:
    arguments = [f"{application}:both", "--log-level", "warning", "--event-loop", name]
    with worker_process(dsn, *arguments) as process, Client(PostgresState(dsn), JOB_TYPES) as client:
        assert client.start_chain(probe, "event loop").result(timeout=WAIT).startswith(modules)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=WAIT)
    assert (process.returncode, log) == (0, "")


def test_an_event_loop_that_is_not_installed(
    application: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["worker", f"{application}:both", "--url", UNREACHABLE, "--event-loop", "uvloop"]) == 3
    error = capsys.readouterr().err
    assert error == (
        "queuert: --event-loop uvloop: the package 'uvloop' is not installed: pip install 'queuert[uvloop]'\n"
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nonsense", "must be MODULE:ATTRIBUTE"),
        (":both", "must be MODULE:ATTRIBUTE"),
        ("no_such_module:both", "no module 'no_such_module'"),
        ("{}.inner:both", "no module"),
        ("{}:absent", "no attribute 'absent'"),
        ("{}:number", "of type int"),
        ("{}:nothing", "an empty list"),
        ("{}:job_types", "of type JobTypes"),
        ("{}:broken", "LookupError: no such setting"),
        ("fails_at_import:both", "No module named 'nothing_of_this_name' (fails_at_import.py, line 1)"),
    ],
)
def test_an_application_that_is_not_one(
    target: str, reason: str, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", target.format(application), "--url", UNREACHABLE]) == 2
    error = capsys.readouterr().err
    assert error.startswith("queuert: ")
    assert error.count("\n") == 1
    assert reason in error


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["NO_SUCH_VARIABLE"]',  # Raised in code that is frozen into the interpreter, which has no file.
        'json.loads("{")',  # In a module of Python.
        'psycopg.conninfo.make_conninfo("nonsense")',  # In an installed package.
        'JobType("", input=int, output=int)',  # In Queuert.
    ],
)
def test_the_line_of_the_application_that_failed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"import json, os, psycopg\nfrom queuert import JobType\n\n{line}\n"
    (tmp_path / "fails_in_others.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["worker", "fails_in_others:both", "--url", UNREACHABLE]) == 2
    assert "(fails_in_others.py, line 4); --debug shows the traceback" in capsys.readouterr().err


def test_all_forms_of_an_application(application: str) -> None:
    assert isinstance(load(f"{application}:ready"), InProcessWorker)
    for attribute, groups in (("first", 1), ("both", 2), ("made", 2)):
        loaded = load(f"{application}:{attribute}")
        assert isinstance(loaded, list)
        assert len(loaded) == groups


def test_groups_share_job_types() -> None:
    one, two = Processors(JobTypes(shout)), Processors(JOB_TYPES)
    assert merged_job_types([one, two]).names == ("shout", "probe")
    other = Processors(JobTypes(JobType("shout", input=int, output=int)))
    with pytest.raises(DuplicateJobTypeError, match="shout"):
        merged_job_types([one, other])


def _built(*arguments: str) -> InProcessWorker:
    return build(build_parser().parse_args(["worker", *arguments]))


def test_flags_override_the_settings_of_a_worker(application: str) -> None:
    """Those that are not given stay as the function has set them."""
    worker = _built(f"{application}:ready", "--concurrency", "3", "--shutdown-timeout", "4", "--keep-schedules")
    assert (worker._concurrency, worker._shutdown_timeout, worker._keep_schedules) == (3, 4.0, True)
    assert worker.name == "ready"
    assert _built(f"{application}:ready")._concurrency == 7
    worker = _built(f"{application}:ready", "--name", "w", "--poll-interval", "2", "--claim-bytes", "5")
    assert (worker.name, worker._concurrency, worker._poll_interval, worker._claim_bytes) == ("w", 7, 2.0, 5)
    worker = _built(f"{application}:ready", "--types", "shout")
    assert list(worker._processors) == ["shout"]


def test_flags_are_passed_to_a_function_that_has_parameters_for_them(application: str) -> None:
    """What it takes, it uses as it sees fit; the others override."""
    worker = _built(f"{application}:configured", "--url", "dbname=here", "--name", "w", "--concurrency", "3")
    assert (worker.name, worker._concurrency) == ("made-for-w", 3)
    assert worker.client.state._settings.dsn == "dbname=here"  # type: ignore[attr-defined]
    assert _built(f"{application}:configured").name == "made-for-nobody"


def test_a_function_that_needs_an_address_gets_that_of_the_environment(
    application: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUEUERT_URL", raising=False)
    assert main(["worker", f"{application}:addressed"]) == 2
    assert "needs an address: pass --url, or set QUEUERT_URL" in capsys.readouterr().err
    monkeypatch.setenv("QUEUERT_URL", "dbname=there")
    assert _built(f"{application}:addressed").client.state._settings.dsn == "dbname=there"  # type: ignore[attr-defined]
    given = _built(f"{application}:addressed", "--url", "dbname=here")
    assert given.client.state._settings.dsn == "dbname=here"  # type: ignore[attr-defined]
    assert main(["worker", f"{application}:demanding"]) == 2
    assert "callable without engine: give these parameters a default" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--url", UNREACHABLE], ["--schema", "other"], ["--otel"]])
def test_a_worker_with_a_client_of_its_own_takes_no_settings_of_clients(
    application: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", f"{application}:ready", *options]) == 2
    assert f"remove {options[0]}, or name a function that has parameters for it" in capsys.readouterr().err


def test_the_parent_of_traces(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By default attempts are linked to what created their jobs."""
    address = ["--url", UNREACHABLE]
    for options, is_child in (([], False), (["--otel-parent", "link"], False), (["--otel-parent", "creator"], True)):
        tracing = _built(f"{application}:first", *address, "--otel", *options).client.tracing
        assert tracing is not None
        [middleware] = tracing._middlewares
        assert isinstance(middleware, OTelMiddleware)
        assert middleware._is_child is is_child
    assert main(["worker", f"{application}:first", *address, "--otel-parent", "creator"]) == 2
    assert "--otel-parent needs --otel" in capsys.readouterr().err
    assert main(["worker", f"{application}:ready", "--otel", "--otel-parent", "link"]) == 2
    assert "remove --otel, --otel-parent" in capsys.readouterr().err


def test_several_targets(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker of all processors; handlers of one type are refused by name, and so is a worker beside others."""
    address = ["--url", UNREACHABLE]
    worker = _built(f"{application}:first", f"{application}:second", *address)
    assert list(worker._processors) == ["shout", "probe"]
    assert main(["worker", f"{application}:first", f"{application}:both", *address]) == 2
    assert "job type 'shout' has two handlers, " in capsys.readouterr().err
    assert main(["worker", f"{application}:first", f"{application}:ready", *address]) == 2
    assert "an InProcessWorker must be the only target" in capsys.readouterr().err


def test_job_types_to_handle(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = [f"{application}:both", "--url", UNREACHABLE]
    assert list(_built(*target, "--types", "probe, shout")._processors) == ["shout", "probe"]
    assert list(_built(*target, "--types", "probe")._processors) == ["probe"]
    assert list(_built(*target, "--exclude-types", "probe")._processors) == ["shout"]
    assert main(["worker", *target, "--types", "probes"]) == 2
    assert "must have handlers, got 'probes'; those with handlers: 'shout', 'probe'" in capsys.readouterr().err
    assert main(["worker", *target, "--types", "probe,"]) == 2
    assert "must be names separated by commas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--budget", "20s"], "--budget needs --once: add it"),
        (["--once", "--budget", "0"], "must be a number of seconds above 0"),
        (["--once", "--budget", "soon"], "must be an age such as 90s"),
        (["--once", "--reload"], "--reload and --once exclude each other"),
    ],
)
def test_modes_that_make_no_sense(
    application: str, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", f"{application}:both", "--url", UNREACHABLE, *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_budget_has_a_unit_or_is_in_seconds() -> None:
    for text, seconds in (("20s", 20.0), ("5m", 300.0), ("1.5", 1.5)):
        assert build_parser().parse_args(["worker", "a:b", "--once", "--budget", text]).budget == seconds


@pytest.mark.timeout(240)
def test_once_works_off_what_is_due(dsn: str, application: str) -> None:
    """Also chains that its schedules start; what is scheduled for later stays. The exit code is 0."""
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        chains = [client.start_chain(shout, f"hello {number}") for number in range(50)]
        later = client.start_chain(shout, "later", run_at=after(hours=1))
        with worker_process(dsn, f"{application}:both", "--once", "--concurrency", "4") as process:
            _, log = process.communicate(timeout=WAIT)
        assert process.returncode == 0, log
        assert {chain.refresh().status for chain in chains} == {ChainStatus.COMPLETED}
        assert later.refresh().status is ChainStatus.OPEN


@pytest.mark.timeout(240)
def test_once_ends_after_its_budget(dsn: str, application: str) -> None:
    """A job that retries for ever keeps the worker busy; with the budget it ends, and the job stays."""
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        endless = client.start_chain(probe, "/no/such/file")
        with worker_process(dsn, f"{application}:busy", "--once", "--budget", "2s") as process:
            _, log = process.communicate(timeout=WAIT)
        assert process.returncode == 0, log
        assert endless.refresh().status is ChainStatus.OPEN


def test_reload_without_watchfiles(
    application: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert main(["worker", f"{application}:both", "--url", UNREACHABLE, "--reload"]) == 3
    assert capsys.readouterr().err == (
        "queuert: --reload: the package 'watchfiles' is not installed: pip install 'queuert[reload]'\n"
    )


@pytest.mark.timeout(240)
def test_reload_starts_the_worker_again_when_a_file_changes(dsn: str, application: str, tmp_path: Path) -> None:
    """The running worker is stopped as by Ctrl-C, and the new code runs."""
    source = tmp_path / f"{application}.py"
    with (
        worker_process(dsn, f"{application}:both", "--reload") as process,
        Client(PostgresState(dsn), JOB_TYPES) as client,
    ):
        assert client.start_chain(shout, "hello").result(timeout=WAIT) == "HELLO"
        source.write_text(source.read_text().replace("attempt.input.upper()", "attempt.input.title()"))
        assert process.stderr is not None
        for line in process.stderr:
            if "the worker starts again" in line:
                break
        for line in process.stderr:
            if " started: " in line:
                break
        assert client.start_chain(shout, "hello").result(timeout=WAIT) == "Hello"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT)
        assert process.returncode == 0


def test_settings_reach_the_worker(application: str) -> None:
    with pytest.raises(ConfigurationError, match="worker name"):
        build(build_parser().parse_args(["worker", f"{application}:both", "--url", UNREACHABLE, "--name", "a b"]))
    args = ["worker", f"{application}:both", "--url", UNREACHABLE, "--name", "w"]
    assert build(build_parser().parse_args(args)).name == "w"


def test_no_address(application: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("QUEUERT_URL", raising=False)
    assert main(["worker", f"{application}:both"]) == 2
    assert "QUEUERT_URL" in capsys.readouterr().err


def test_unreachable(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"{application}:both", "--url", UNREACHABLE]) == 3
    error = capsys.readouterr().err
    assert error.startswith("queuert")
    assert error.count("\n") == 1
    assert "hunter2" not in error


def test_no_schema(application: str, bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"{application}:both", "--url", bare_dsn]) == 3
    error = capsys.readouterr().err
    assert "queuert migrate up" in error
    assert error.count("\n") == 1


def test_a_health_file_that_cannot_be_written(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["worker", f"{application}:both", "--url", UNREACHABLE, "--health-file", "no/such/directory/health"]
    assert main(arguments) == 2
    assert "no directory" in capsys.readouterr().err


def test_a_record_as_json_is_one_line_with_the_events_fields() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.getLogger("queuert").makeRecord(
            "queuert", logging.WARNING, "file", 1, "%s jobs", (3,), sys.exc_info(), extra={"queuert_job_id": "a\nb"}
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["queuert_job_id"]) == ("warning", "3 jobs", "a\nb")
    assert "ValueError" in entry["exception"]


def test_the_error_of_an_application_names_its_own_line(application: str) -> None:
    with pytest.raises(UsageError, match=rf"\({application}\.py, line \d+\)"):
        load(f"{application}:broken")
