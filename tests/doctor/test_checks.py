"""The names of the checks of ``queuert doctor``: the same in the code, in the documentation and on the command line."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert import Client, JobTypes
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.notify.in_process import InProcessNotify
from queuert.state.diagnosis import CHECKS, Finding, Severity, error, ok, skipped, warning
from queuert.state.sqlite import SQLiteState

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "queuert" / "state"
SOURCES = [STATE / "diagnosis.py", *STATE.glob("*/doctor.py")]
MAKERS = {"ok", "skipped", "warning", "error", "Finding"}


def names_in(source: str) -> Iterator[str]:
    """The names of the findings that a module makes, where they are written down."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                assert isinstance(name.value, str)
                yield name.value


def test_each_check_has_one_name() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in CHECKS)


def test_the_checks_are_those_of_the_sources() -> None:
    assert len(SOURCES) == 4
    assert {name for path in SOURCES for name in names_in(path.read_text(encoding="utf-8"))} == set(CHECKS)


def test_the_checks_are_those_of_the_documentation_in_its_order() -> None:
    text = (ROOT / "docs" / "operate" / "doctor.md").read_text(encoding="utf-8")
    tables = text[text.index("## Every store") :]
    assert tuple(dict.fromkeys(re.findall(r"^\| `([a-z_]+)` \|", tables, re.MULTILINE))) == CHECKS


# --- what is ignored --------------------------------------------------------------------------------------------------

FOUND = (
    ok("server", "Postgres 17.1"),
    warning("login", "postgres is a superuser", "it may do everything", "use another"),
    warning("login", "a second one", "because", "do this"),
    error("schema", "no tables", "no job can be stored", "queuert migrate up"),
    skipped("transactions", "role app sees only its own sessions"),
)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store of which the findings are known."""
    path = tmp_path / "jobs.db"
    with Client(SQLiteState(path), JobTypes(), notify=InProcessNotify()) as client:
        client.count_jobs()
    monkeypatch.setattr(SQLiteState, "diagnose", lambda self: list(FOUND))
    return f"sqlite:///{path}"


def ignoring(*names: str) -> list[str]:
    return [word for name in names for word in ("--ignore", name)]


@pytest.mark.parametrize(
    ("ignored", "code"),
    [
        ((), Exit.FAILED),
        (("login",), Exit.FAILED),
        (("schema",), Exit.WARNINGS),
        (("schema", "login"), Exit.DONE),
        (("vacuum",), Exit.FAILED),
    ],
)
def test_what_is_ignored_is_left_out_and_does_not_count(
    url: str, capsys: pytest.CaptureFixture[str], ignored: tuple[str, ...], code: Exit
) -> None:
    left = [finding for finding in FOUND if finding.check not in ignored]
    assert main(["doctor", "--url", url, *ignoring(*ignored), "--json"]) == code
    assert [Finding(**item) for item in json.loads(capsys.readouterr().out)["items"]] == left
    assert main(["doctor", "--url", url, *ignoring(*ignored)]) == code
    text = capsys.readouterr().out
    assert all((finding.found in text) == (finding in left) for finding in FOUND)
    errors = sum(finding.severity is Severity.ERROR for finding in left)
    assert ("1 error" in text.splitlines()[-1]) == bool(errors)


def test_all_may_be_ignored(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", url, *ignoring(*CHECKS)]) == Exit.DONE
    assert capsys.readouterr().out == "nothing found but what is ignored\n"
    assert main(["doctor", "--url", url, *ignoring(*CHECKS), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == {"items": []}


@pytest.mark.parametrize("name", ["sizes", "", "Size", "size,login"])
def test_an_unknown_name_is_refused_with_those_that_there_are(
    url: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["doctor", "--url", url, "--ignore", name]) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"argument --ignore: must be the name of a check, got {name!r}: use " in said
    assert ", ".join(sorted(CHECKS)) in said
