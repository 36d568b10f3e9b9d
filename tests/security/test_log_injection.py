"""Text from elsewhere cannot forge lines of a log, nor tell a terminal what to do: by names, errors, ids, keys."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, PostgresState
from queuert.cli import main
from queuert.cli.logs import JsonFormatter, LineFormatter
from queuert.errors import JobFailedError
from queuert.notify.in_process import InProcessNotify
from queuert.observability.context import ContextFilter
from queuert.observability.log import LogObservability
from queuert.policies import RetryPolicy
from queuert.worker import Processors
from tests.support.waiting import WAIT

FORGED = (
    '\n{"level":"error","message":"forged"}\r\nERROR forged\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp.exe\u2028\u2066\x00'
)
STORED = FORGED.replace("\x00", "")
"""Postgres takes no NUL, and neither do ids."""

work = JobType("work", input=str, output=str)
TYPES = JobTypes(work)


class Lines:
    """What a worker's log consists of, in one of the formats of the command line."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._text = io.StringIO()
        self._handler = logging.StreamHandler(self._text)
        self._handler.setFormatter(formatter)
        self._handler.addFilter(ContextFilter())
        self.logger = logging.getLogger(f"queuert.test.{id(self)}")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.addHandler(self._handler)

    def text(self) -> str:
        """All of it."""
        return self._text.getvalue()


async def fail_once(dsn: str, lines: Lines) -> None:
    """Run a job with a hostile id, key and error."""
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1))

    @processors.handles(work)
    async def failing(attempt: Any) -> Any:
        raise ValueError(FORGED)

    client = AsyncClient(
        PostgresState(dsn), TYPES, notify=InProcessNotify(), observability=LogObservability(lines.logger)
    )
    async with client, InProcessWorker(client, processors):
        chain = await client.start_chain(work, "x", id=STORED, limit_key=STORED, attributes={"user": STORED})
        with pytest.raises(JobFailedError):
            await chain.result(WAIT)


async def test_a_log_of_json_is_one_object_a_line(dsn: str) -> None:
    lines = Lines(JsonFormatter())
    await fail_once(dsn, lines)
    records = [json.loads(line) for line in lines.text().split("\n") if line]
    assert {record["logger"] for record in records} == {lines.logger.name}
    assert not any(record["message"] == "forged" for record in records)
    assert any(record.get("queuert_event") == "AttemptFailed" for record in records)
    assert all(character.isprintable() or character in "\n\t" for character in lines.text())
    for record in records:
        assert all(
            one.isprintable()
            for name, one in record.items()
            if name != "queuert_error_traceback" and isinstance(one, str)
        )


async def test_a_log_of_lines_begins_each_with_its_own(dsn: str) -> None:
    lines = Lines(LineFormatter("BEGIN %(levelname)s %(message)s"))
    await fail_once(dsn, lines)
    text = lines.text()
    assert all(character.isprintable() or character in "\n\t" for character in text)
    assert "\nERROR forged" not in text
    assert '\n{"level"' not in text
    assert r"\n{" in text


@pytest.fixture
def failed(dsn: str) -> Iterator[Client]:
    """A chain that failed with what hands have written into its row."""
    error = {"kind": "handler", "type": STORED, "message": STORED, "traceback": f"Traceback\n  File{STORED}\nboom"}
    with Client(PostgresState(dsn), TYPES, notify=InProcessNotify()) as client:
        client.start_chain(work, STORED, id=STORED, attributes={"user": STORED}, limit_key=STORED)
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "update queuert.job set status = 'failed', chain_status = 'failed', attempt = 1, error = %s,"
                " holder = %s, type = %s, chain_type = %s, finished_at = now(), chain_closed_at = now()",
                [json.dumps(error), STORED, STORED, STORED],
            )
        yield client


@pytest.mark.parametrize(
    "command", ["chains list", "jobs list", "chains show ID", "jobs show ID", "events list", "stats"]
)
def test_the_command_line_shows_text_and_no_commands(
    failed: Client, dsn: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [STORED if word == "ID" else word for word in command.split()]
    assert main([*words, "--url", dsn]) == 0
    shown = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in shown), repr(shown)
    assert "\nERROR forged" not in shown
    assert main([*words, "--url", dsn, "--json"]) == 0
    shown = capsys.readouterr().out
    json.loads(shown)
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_what_handlers_log_themselves() -> None:
    """Their own words are theirs; still, they are one object, or one record, and not two."""
    as_json, as_lines = Lines(JsonFormatter()), Lines(LineFormatter("BEGIN %(levelname)s %(message)s"))
    for lines in (as_json, as_lines):
        try:
            raise ValueError(FORGED)
        except ValueError:
            lines.logger.exception("about %s", FORGED)
    [line] = as_json.text().splitlines()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"about {FORGED}"
    begin, *rest = as_lines.text().splitlines()
    assert begin.startswith("BEGIN ERROR about")
    assert all(one.startswith("    ") for one in rest)


def test_what_is_not_there_is_reported_in_one_line(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chains", "show", STORED, "--url", dsn]) == 1
    reported = capsys.readouterr().err.rstrip("\n")
    assert reported.isprintable()


def test_a_health_file_that_hands_have_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health"
    path.write_text(json.dumps({"worker": STORED, "live": True, "written_at": STORED}), encoding="utf-8")
    assert main(["health", "--file", str(path)]) != 0
    captured = capsys.readouterr()
    assert (captured.out + captured.err).rstrip("\n").isprintable()
