"""The log of a real `queuert worker`: each line of a handler has its job, in whatever way the application logs."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.cli.exit_codes import UsageError
from queuert.cli.logs import JsonFormatter, configure
from queuert.observability.context import FIELDS

WAIT = 60.0

in_loop = JobType("in_loop", input=str, output=str)
in_thread = JobType("in_thread", input=str, output=str)
in_process = JobType("in_process", input=str, output=str)
JOB_TYPES = JobTypes(in_loop, in_thread, in_process)

APPLICATION = """
import logging

{setup}
from queuert import JobType, JobTypes, Processors

in_loop = JobType("in_loop", input=str, output=str)
in_thread = JobType("in_thread", input=str, output=str)
in_process = JobType("in_process", input=str, output=str)
processors = Processors(JobTypes(in_loop, in_thread, in_process))


def log(attempt):
    {log}
    return attempt.input


@processors.handles(in_loop)
async def run_in_loop(attempt):
    return log(attempt)


@processors.handles(in_thread)
def run_in_thread(attempt):
    return log(attempt)


@processors.handles(in_process, executor="process")
def run_in_process(attempt):
    return log(attempt)
"""

STANDARD = 'logging.getLogger("app").warning("hello %s", attempt.type, extra={"order": 7, "level": "mine"})'
OWN = """
import sys
handler = logging.StreamHandler(sys.stderr)
line = "OWN %(name)s %(message)s order=%(order)s %(queuert_job_id)s"
handler.setFormatter(logging.Formatter(line, defaults={"order": None}))
logging.basicConfig(level="WARNING", handlers=[handler])
"""
STRUCTLOG = """
import sys
import structlog
from queuert.integrations.structlog import add_attempt
shared = [structlog.contextvars.merge_contextvars, add_attempt]
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(structlog.stdlib.ProcessorFormatter(
    foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
    processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
))
logging.basicConfig(level="WARNING", handlers=[handler])
structlog.configure(
    processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
)
"""


def lines_of(dsn: str, tmp_path: Path, setup: str, log: str, *arguments: str) -> tuple[dict[str, str], list[str]]:
    """The ids of the jobs by type, and the lines of a worker that ran one of each."""
    (tmp_path / "logging_app.py").write_text(APPLICATION.format(setup=setup, log=log), encoding="utf-8")
    command = [sys.executable, "-m", "queuert", "worker", "logging_app:processors", *arguments]
    environment = {**os.environ, "QUEUERT_URL": dsn}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with Client(PostgresState(dsn), JOB_TYPES) as client:
            chains = [client.start_chain(one, "x") for one in (in_loop, in_thread, in_process)]
            assert [chain.result(timeout=WAIT) for chain in chains] == ["x"] * 3
        process.send_signal(signal.SIGTERM)
        _, log_text = process.communicate(timeout=WAIT)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    return {chain.type: chain.id for chain in chains}, log_text.splitlines()


@pytest.mark.timeout(240)
def test_lines(dsn: str, tmp_path: Path) -> None:
    jobs, lines = lines_of(dsn, tmp_path, "", STANDARD)
    for type, id in jobs.items():
        [line] = [line for line in lines if f"hello {type}" in line]
        assert f"queuert_job_id={id} queuert_chain_id={id} queuert_type={type} queuert_attempt=1]" in line


@pytest.mark.timeout(240)
def test_json(dsn: str, tmp_path: Path) -> None:
    jobs, lines = lines_of(dsn, tmp_path, "", STANDARD, "--log-json", "--log-level", "warning")
    entries = {entry["message"]: entry for entry in map(json.loads, lines)}
    for type, id in jobs.items():
        entry = entries[f"hello {type}"]
        assert [entry[name] for name in FIELDS[1:]] == [id, id, type, 1]
        assert (entry["order"], entry["level"], entry["extra_level"]) == (7, "warning", "mine")


@pytest.mark.timeout(240)
def test_an_applications_own_handler_stays(dsn: str, tmp_path: Path) -> None:
    jobs, lines = lines_of(dsn, tmp_path, OWN, STANDARD)
    assert sorted(lines) == sorted(f"OWN app hello {type} order=7 {id}" for type, id in jobs.items())


@pytest.mark.timeout(240)
def test_structlog(dsn: str, tmp_path: Path) -> None:
    log = 'structlog.get_logger("app").warning("hello", of=attempt.type)'
    jobs, lines = lines_of(dsn, tmp_path, STRUCTLOG, log)
    entries = {entry["of"]: entry for entry in map(json.loads, lines) if entry.get("event") == "hello"}
    for type, id in jobs.items():
        assert [entries[type][name] for name in FIELDS[1:]] == [id, id, type, 1]


def test_json_takes_whatever_is_extra() -> None:
    itself: list[object] = []
    itself.append(itself)
    record = logging.makeLogRecord({"msg": "x", "nan": float("nan"), "loop": itself, "pair": {(1, 2): 3}, "time": "t"})
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["message"], entry["nan"], entry["extra_time"]) == ("x", "nan", "t")


def test_json_is_refused_where_the_application_logs_itself() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    with pytest.raises(UsageError, match="--log-json must not be given"):
        configure(None, as_json=True)
