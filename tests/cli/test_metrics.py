"""``queuert metrics``, and the port of ``queuert worker``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.cli import main

shout = JobType("shout", input=str, output=str)
WAIT = 60.0


def test_once(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(PostgresState(dsn), JobTypes(shout)) as client:
        client.start_chain(shout, "a")
    assert main(["metrics", "--url", dsn]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'queuert_jobs{queuert_job_status="ready",queuert_job_type="shout"} 1.0' in lines
    assert "queuert_store_up 1.0" in lines
    assert "# TYPE queuert_jobs gauge" in lines


def test_a_database_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--url", "postgresql://me:hunter2@127.0.0.1:1/nowhere"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "hunter2" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["metrics", "--serve", "65536"], "must be an integer from 0 to 65535, got 65536"),
        (["metrics", "--interval", "0"], "must be a number of seconds above 0, got 0"),
        (["metrics", "--url", "dbname=nowhere", "--host", "127.0.0.1"], "need --serve PORT: add it"),
        (["metrics", "--url", "dbname=nowhere", "--interval", "5"], "need --serve PORT: add it"),
        (["worker", "app:jobs", "--metrics-port", "http"], "must be an integer from 0 to 65535, got http"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_settings_of_a_port_without_one(application: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["worker", f"{application}:both", "--url", "dbname=nowhere", "--stale-after", "5"]
    assert main(arguments) == 2
    assert "need --metrics-port: add it" in capsys.readouterr().err


@contextmanager
def serving(dsn: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves HTTP, and its port, which it logs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", *arguments],
        env={**os.environ, "QUEUERT_URL": dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving .* on port (\d+)", line):
                yield process, int(found[1])
                return
        pytest.fail("it has not said on which port it serves")
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until_ready(port: int) -> None:
    """Ask until it is ready: the limit of the test bounds it."""
    while ask(port, "/ready")[0] != 200:
        pass


@pytest.mark.timeout(240)
def test_serving_the_gauges_of_the_database(dsn: str) -> None:
    with serving(dsn, "metrics", "--serve", "0", "--host", "127.0.0.1", "--interval", "0.1") as (process, port):
        until_ready(port)
        assert ask(port, "/live") == (200, "ok\n")
        assert "queuert_store_up 1.0" in ask(port, "/metrics")[1].splitlines()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0


@pytest.mark.timeout(240)
def test_a_worker_serves_its_metrics_and_health(dsn: str, application: str) -> None:
    port_options = ("--metrics-port", "0", "--metrics-host", "127.0.0.1", "--stale-after", "60")
    with serving(dsn, "worker", f"{application}:both", *port_options) as (process, port):
        until_ready(port)
        with Client(PostgresState(dsn), JobTypes(shout)) as client:
            assert client.start_and_wait(shout, "a", timeout=WAIT) == "A"
        assert ask(port, "/live") == (200, "ok\n")
        status, metrics = ask(port, "/metrics")
        assert status == 200
        assert "queuert_job_attempt_ended_total" in metrics
        assert "queuert_slots 1.0" in metrics.splitlines()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0
