"""``queuert check``: what does not fit together in an application."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert.cli import main

HEAD = """
from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, PostgresState, Processors, RecurringSchedule

first = JobType("first", input=int, continues_with="last")
last = JobType("last", input=int, output=int)
waits = JobType("waits", input=int, output=int, blockers=(last, first, ...))
job_types = JobTypes(first, last, waits)
nightly = RecurringSchedule("nightly", waits, 1, cron="@daily")
"""

FITS = """
processors = Processors(job_types, schedules=[nightly])

@processors.handles(first)
@processors.handles(last)
@processors.handles(waits)
def handle(attempt):
    return 1
"""

LACKS = """
processors = Processors(job_types, schedules=[nightly])

@processors.handles(first)
def handle(attempt):
    return 1
"""

BY_CLIENTS = """
ask = JobType("ask", input=int, completed_by="client", continues_with="answer")
answer = JobType("answer", input=int, output=int, completed_by="client")
follows = JobType("follows", input=int, output=int, blockers=(ask,), continues_with=ask)
processors = Processors(
    JobTypes(ask, answer, follows), schedules=[RecurringSchedule("weekly", ask, 1, cron="@weekly")]
)

@processors.handles(follows)
def handle(attempt):
    return 1
"""

OTHER = """
from queuert import JobType, JobTypes, Processors

other = JobType("other", input=int, output=int)
processors = Processors(JobTypes(other))

@processors.handles(other)
def handle(attempt):
    return 1
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules in the current directory: one that fits, one that lacks handlers, one with another job type."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {"fits": HEAD + FITS, "lacks": HEAD + LACKS, "other": OTHER, "types_only": HEAD}
    texts["by_clients"] = HEAD.partition("first")[0] + BY_CLIENTS
    worker = "client = AsyncClient(PostgresState(''), job_types)\nworker = InProcessWorker(client, processors)\n"
    texts["with_worker"] = (
        HEAD
        + LACKS.replace(", schedules=[nightly]", "")
        + worker.replace("processors)", "processors, schedules=[nightly])")
    )
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield
    for name in texts:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_an_application_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("fits", "fits:processors"):
        assert main(["check", target]) == 0
        assert capsys.readouterr().out == "problems: 0; job types: 3; with a handler: 3; schedules: 1 (nightly)\n"


@pytest.mark.usefixtures("modules")
def test_what_clients_complete_needs_no_handler(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor as a continuation, as a blocker, or of a schedule."""
    assert main(["check", "by_clients"]) == 0
    assert capsys.readouterr().out == "problems: 0; job types: 3; with a handler: 1; schedules: 1 (weekly)\n"


PROBLEMS = [
    ("type_without_handler", "last", "job type 'last' has no handler: no worker runs its jobs"),
    ("type_without_handler", "waits", "job type 'waits' has no handler: no worker runs its jobs"),
    (
        "continuation_without_handler",
        "last",
        "job type 'first' continues with 'last', which has no handler: its chains stay open",
    ),
    (
        "blocker_without_handler",
        "last",
        "job type 'waits' waits for 'last', which has no handler: its jobs stay blocked",
    ),
    ("schedule_of_unknown_type", "nightly", "schedule 'nightly' starts job type 'waits', which has no handler"),
]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("target", ["lacks", "lacks:processors", "with_worker", "with_worker:worker"])
def test_what_lacks_a_handler(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [text for _, _, text in PROBLEMS]
    assert summary == "problems: 5; job types: 3; with a handler: 1; schedules: 1 (nightly)"
    assert main(["check", target, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "types": 3,
        "handlers": 1,
        "schedules": ["nightly"],
        "problems": [{"kind": kind, "name": name, "text": text} for kind, name, text in PROBLEMS],
    }


@pytest.mark.usefixtures("modules")
def test_what_several_modules_have_together(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler of a type that no JobTypes has; two handlers of one type."""
    assert main(["check", "fits", "other"]) == 1
    assert "is of job type 'other', which no JobTypes of the modules has" in capsys.readouterr().out
    assert main(["check", "other"]) == 0
    capsys.readouterr()
    assert main(["check", "fits", "lacks"]) == 1
    assert "job type 'first' has several handlers, " in capsys.readouterr().out


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("target", "reason"),
    [("types_only", "must have a Processors"), ("absent", "no module 'absent'"), ("fits:absent", "no attribute")],
)
def test_targets_that_cannot_be_checked(target: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target]) == 2
    assert reason in capsys.readouterr().err
