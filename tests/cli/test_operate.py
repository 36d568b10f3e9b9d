"""The commands of operators: look at chains and jobs, and act on them, on a database of the test's own."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from queuert import Client, Deduplicate, JobStatus, JobType, JobTypes, NewChain, PostgresState, after
from queuert.activity import Activity, ActivityReport, Histogram
from queuert.bulk_operations import BulkPreview
from queuert.cli import events, main, operations, why
from queuert.cli.output import print_page, shown
from queuert.documents import EventDocument, Hidden, WebhookAttemptDocument
from queuert.errors import ConfigurationError, RightMissingError, StateUnavailableError
from queuert.explanations import Explanation
from queuert.ids import new_token
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.limits import Limits, TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.schedules import RecurringSchedule
from queuert.state.types import ClaimRequest
from queuert.webhooks.endpoints import DELIVERY_TYPE
from queuert.workers import WorkerHeartbeat, WorkerState

number = JobType("number", input=int, output=int)
step = JobType("step", input=str, output=str)
order = JobType("order", input=str, continues_with=step)
JOB_TYPES = JobTypes(number, step, order)

Run = Callable[..., str]


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; its output."""
    monkeypatch.setenv("QUEUERT_URL", dsn)

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 or captured.out else captured.err

    return call


def document(run: Run, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    return json.loads(run(*arguments, "--json", code=code))


def ids(run: Run, *arguments: str) -> list[str]:
    return [one["id"] for one in document(run, *arguments)["items"]]


def failed_chains(client: Client, dsn: str, count: int, job_type: JobType[Any, Any] = number) -> list[str]:
    """Chains that have failed."""
    error = {"kind": "handler", "type": "ValueError", "message": "no\nsuch", "traceback": "File x\nboom"}
    given = [1 if job_type is number else "x"] * count
    found = [chain.id for chain in client.start_chains([NewChain(job_type, one) for one in given])]
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """
            UPDATE queuert.job
            SET status = 'failed', chain_status = 'failed', finished_at = now(), chain_closed_at = now(), attempt = 1,
                error = %(error)s, failures = jsonb_build_array(jsonb_build_object('attempt', 1, 'started_at', now(),
                    'failed_at', now(), 'worker', 'host-1', 'error', %(error)s::jsonb))
            WHERE id = ANY (%(ids)s)
            """,
            {"error": Jsonb(error), "ids": found},
        )
    return found


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["chains", "jobs"])
def test_lists(run: Run, client: Client, command: str) -> None:
    assert run(command, "list") == "none\n"
    assert document(run, command, "list") == {"items": [], "next_cursor": None}
    one, two = (client.start_chain(number, at).id for at in range(2))
    three = client.start_chain(order, "x").id
    client.cancel_chain(one)
    lines = run(command, "list").splitlines()
    own = ["id"] if command == "chains" else ["id", "chain_id"]
    assert lines[0].split()[: len(own) + 2] == [*own, "type", "status"]
    assert [line.split()[0] for line in lines[1:]] == [three, two, one]
    assert ids(run, command, "list", "--oldest-first") == [one, two, three]
    assert ids(run, command, "list", "--type", "number", "--type", "removed") == [two, one]
    assert ids(run, command, "list", "--status", "cancelled") == [one]
    assert ids(run, command, "list", "--since", "1h") == [three, two, one]
    assert ids(run, command, "list", "--before", "15m") == []
    assert ids(run, command, "list", "--since", "2000-01-01T00:00Z", "--before", "2000-01-01T00:00+02:00") == []


@pytest.mark.parametrize("command", ["chains", "jobs"])
def test_pages(run: Run, client: Client, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = [client.start_chain(number, at).id for at in range(5)]
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        page = document(run, command, "list", "--limit", "2", *cursor)
        seen += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = ["--cursor", page["next_cursor"]]
    assert seen == known[::-1]
    assert main([command, "list", "--limit", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("more: --cursor ")
    assert captured.out.count("\n") == 3
    assert "must be a next_cursor of this listing" in run(command, "list", "--cursor", "nonsense", code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["chains", "list", "--status", "ready"],
        ["jobs", "list", "--status", "open"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "list", "--limit", "1001"],
        ["jobs", "list", "--since", "2024-01-01"],
        ["jobs", "list", "--since", "yesterday"],
        ["jobs", "list", "--since", "999999d"],
        ["chains", "list", "--type", ""],
        ["chains", "list", "--attribute", "user"],
        ["chains", "list", "--attribute", "a b=17"],
        ["chains", "list", "--attribute", "user="],
        ["jobs", "list", "--attribute", "user=17"],
        ["chains"],
        ["chains", "show"],
        ["chains", "cancel"],
        ["chains", "show", "--key", "a"],
        ["chains", "show", "some-id", "--key", "a", "--type", "number"],
        ["chains", "cancel", "--type", "number"],
        ["chains", "cancel", "some-id", "--key", "a", "--type", "number"],
        ["chains", "retry"],
        ["operations", "start", "retry", "--yes"],
        ["chains", "delete", "some-id"],
        ["schedules", "delete", "nightly"],
        ["jobs", "trigger"],
        ["job-types", "pause"],
    ],
    ids=" ".join,
)
def test_what_is_refused_as_it_stands(run: Run, arguments: list[str]) -> None:
    error = run(*arguments, code=2)
    assert error.startswith("queuert: ")
    assert error.count("\n") == 1


# --- one chain, one job -----------------------------------------------------------------------------------------------


def test_a_chain_with_all_around_it(run: Run, client: Client) -> None:
    chain = client.start_chain(order, "tea")
    last = client.continue_chain(chain, step, "x")
    waiting = client.start_chain(number, 1, blockers=[chain]).id
    text = run("chains", "show", chain.id)
    assert f"id          {chain.id}" in text
    assert text.index("jobs:") < text.index(last) < text.index("dependents:") < text.index(waiting)
    found = document(run, "chains", "show", chain.id)
    assert (found["id"], found["type"], found["status"], found["error"]) == (chain.id, "order", "open", None)
    assert [(one["id"], one["status"], one["input"]) for one in found["jobs"]] == [
        (chain.id, "continued", "tea"),
        (last, "ready", "x"),
    ]
    assert [one["id"] for one in found["dependents"]] == [waiting]
    assert not found["more_jobs"]
    assert "'nowhere' does not exist" in run("chains", "show", "nowhere", code=1)


def test_a_chain_with_those_that_it_waited_for(run: Run, client: Client) -> None:
    leaf = client.start_chain(number, 1, id="leaf")
    client.start_chain(number, 2, id="middle", blockers=[leaf])
    client.start_chain(number, 3, id="top", blockers=["middle", leaf])
    client.complete_chain(leaf, 1)
    lines = [re.split(r" {2,}", line.strip()) for line in run("chains", "tree", "top").splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["top", "number", "open"],
        ["middle", "number", "open"],
        ["leaf", "number", "completed (above)"],
        ["leaf", "number", "completed"],
    ]
    assert "      ... and more: --depth, --limit" not in run("chains", "tree", "top", "--limit", "3")
    assert "    ... and more: --depth, --limit" in run("chains", "tree", "top", "--depth", "1")
    found = document(run, "chains", "tree", "top")
    assert [(one["id"], one["waiting_job_id"]) for one in found["blockers"]] == [("middle", "top"), ("leaf", "top")]
    assert found["blockers"][0]["blockers"][0]["repeated"]
    assert "must be an integer from 0 to 100, got -1" in run("chains", "tree", "top", "--depth", "-1", code=2)


def test_a_chain_that_waits_gets_another_input(run: Run, client: Client) -> None:
    chain = client.start_chain(number, 1)
    assert run("chains", "edit", chain.id, "--input", "5") == "edited 1\n"
    assert chain.refresh().input == 5
    client.cancel_chain(chain)
    assert document(run, "chains", "edit", chain.id, "--input", "6", code=1) == {"edited": 0}
    refused = "edited 0; running or closed, so not changed: 1\n"
    assert run("chains", "edit", chain.id, "--input", "6", code=1) == refused
    assert "must be JSON" in run("chains", "edit", chain.id, "--input", "{", code=2)


def test_a_chain_by_its_key(run: Run, client: Client) -> None:
    chain = client.start_chain(number, 1, deduplication=Deduplicate("a key"))
    by_key = ("--type", "number", "--key", "a key")
    assert document(run, "chains", "show", *by_key)["id"] == chain.id
    assert "cancelled 1" in run("chains", "cancel", *by_key)
    assert "cancelled 0" in run("chains", "cancel", *by_key)
    assert document(run, "chains", "show", *by_key)["status"] == "cancelled"
    nothing = run("chains", "show", "--type", "number", "--key", "nothing", code=1)
    assert "no chain that begins with a job of type 'number' has the deduplication key 'nothing'" in nothing


def test_a_job_with_its_error_and_its_blockers(run: Run, client: Client, dsn: str) -> None:
    [bad] = failed_chains(client, dsn, 1)
    good = client.start_chain(step, "x")
    waiting = client.start_chain(number, 5, blockers=[bad, good]).id
    client.complete_chain(good, "done")
    text = run("jobs", "show", bad)
    assert "last_error         handler: ValueError: no\\nsuch" in text
    [title, attempt] = text.partition("failed attempts:\n")[2].partition("traceback")[0].strip().splitlines()
    assert title.split() == ["attempt", "failed_at", "worker", "kind", "error"]
    assert attempt.split()[0] == "1"
    assert attempt.endswith("Z  host-1  handler  ValueError: no\\nsuch")
    assert text.endswith("traceback of the last error:\n  File x\n  boom\n")
    assert run("jobs", "show", waiting).partition("\nblockers:")[2].partition("\n\n")[0].count("\n") == 3
    found = document(run, "jobs", "show", waiting)
    assert (found["id"], found["input"], found["status"]) == (waiting, 5, "ready")
    assert [(one["chain_id"], one["status"], one["output"]) for one in found["blockers"]] == [
        (bad, "failed", None),
        (good.id, "completed", "done"),
    ]
    shown_job = document(run, "jobs", "show", bad)
    assert shown_job["last_error"]["message"] == "no\nsuch"
    assert [(one["attempt"], one["error"]) for one in shown_job["failures"]] == [(1, shown_job["last_error"])]
    assert "'nowhere' does not exist" in run("jobs", "show", "nowhere", code=1)


def test_nothing_that_a_terminal_would_obey(run: Run, client: Client) -> None:
    client.start_chain(number, 1, id="\x1b[31mred\nnext")
    text = run("chains", "list")
    assert "\\x1b[31mred\\nnext" in text
    assert text.count("\n") == 2
    assert ids(run, "chains", "list") == ["\x1b[31mred\nnext"]
    assert shown(True) == "true"
    assert shown({"a": [1, "é"]}) == '{"a": [1, "é"]}'


# --- acting -----------------------------------------------------------------------------------------------------------


def test_cancel(run: Run, client: Client) -> None:
    one, two = (client.start_chain(number, at) for at in range(2))
    client.cancel_chain(two)
    assert run("chains", "cancel", one.id, two.id, "--reason", "stock-taking") == "cancelled 1; closed already: 1\n"
    error = client.get_chain(one.id).error
    assert error is not None
    assert error.message == "stock-taking"
    assert document(run, "chains", "cancel", one.id) == {"cancelled": 0}
    assert "does not exist" in run("chains", "cancel", "nowhere", code=1)


def test_send_an_event(run: Run, client: Client) -> None:
    id = client.start_chain(number, 1).id
    assert run("chains", "send-event", id, "approved") == "sent 1\n"
    assert document(run, "chains", "send-event", id, "approved", "--payload", '{"by": "ada"}', "--event-id", "7") == {
        "sent": 1
    }
    assert run("chains", "send-event", id, "approved", "--event-id", "7") == (
        "sent 0; an event of this id was sent before\n"
    )
    assert "--payload must be JSON" in run("chains", "send-event", id, "approved", "--payload", "yes", code=2)
    assert "does not exist" in run("chains", "send-event", "nowhere", "approved", code=1)
    client.cancel_chain(id)
    assert "is already cancelled" in run("chains", "send-event", id, "approved", code=1)


def test_send_an_event_to_a_chain_at_its_second_job(run: Run, client: Client) -> None:
    chain = client.start_chain(order, "x")
    second = client.continue_chain(chain, step, "y")
    assert run("chains", "send-event", chain.id, "approved") == "sent 1\n"
    assert f"the chain of this job is {chain.id!r}" in run("chains", "show", second, code=1)
    assert "queuert chains list shows" in run("chains", "show", "nowhere", code=1)
    client.cancel_chain(chain)
    assert "is already cancelled" in run("chains", "send-event", chain.id, "approved", code=1)


def test_retry_by_name(run: Run, client: Client, dsn: str) -> None:
    first, second = failed_chains(client, dsn, 2)
    still_open = client.start_chain(number, 1).id
    assert "is open" in run("chains", "retry", first, still_open, code=1)
    assert client.get_job(first).status is JobStatus.FAILED
    assert run("chains", "retry", first, second, first) == "retried 2\n"
    assert client.get_job(first).status is client.get_job(second).status is JobStatus.READY


def test_delete(run: Run, client: Client) -> None:
    blocker = client.start_chain(number, 1)
    waiting = client.start_chain(number, 2, blockers=[blocker])
    assert "--yes" in run("chains", "delete", waiting.id, code=2)
    assert "blockers" in run("chains", "delete", blocker.id, "--yes", code=1)
    both = run("chains", "delete", waiting.id, "nowhere", "--cascade", "--yes", code=1)
    assert both == "deleted 2\n"
    assert client.list_chains().items == ()


def test_trigger(run: Run, client: Client) -> None:
    later = client.start_chain(number, 1, run_at=after(hours=1)).id
    assert run("jobs", "trigger", later) == "triggered 1\n"
    assert client.get_job(later).status is JobStatus.READY
    client.cancel_chain(later)
    assert "must be scheduled to be triggered" in run("jobs", "trigger", later, code=1)
    assert document(run, "jobs", "trigger", client.start_chain(number, 1).id) == {"triggered": 1}


def test_counts(run: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("stats") == "none\n"
    client.start_chains([*(NewChain(number, at) for at in range(3)), NewChain(step, "x", run_at=after(hours=1))])
    lines = [line.split() for line in run("stats").splitlines()]
    assert lines[0] == ["type", "status", "count", "oldest_seconds", "note"]
    assert [line[:3] for line in lines[1:]] == [["number", "ready", "3"], ["step", "scheduled", "1"]]
    [only] = document(run, "stats", "--type", "step", "--type", "removed")["items"]
    assert (only["type"], only["status"], only["count"], only["estimated"]) == ("step", "scheduled", 1, False)
    monkeypatch.setattr("queuert.client.Client.count_jobs", lambda self, types: _estimates())
    assert "~20000" in run("stats")


def _estimates() -> list[Any]:
    from queuert.state.types import TypeCount

    return [TypeCount("number", JobStatus.READY, 20_000, None, estimated=True)]


def test_types(run: Run, client: Client) -> None:
    assert run("job-types", "list") == "none\n"
    assert (
        run("job-types", "pause", "number", "removed", "number", "--reason", "stock-taking", "--force")
        == "paused 2: number, removed\n"
    )
    assert [line.split()[0] for line in run("job-types", "list").splitlines()] == ["type", "number", "removed"]
    found = document(run, "job-types", "list")["items"]
    assert [(one["type"], one["reason"]) for one in found] == [("number", "stock-taking"), ("removed", "stock-taking")]
    assert document(run, "job-types", "resume", "number", "step") == {"resumed": ["number"]}
    assert run("job-types", "resume", "number") == "resumed 0\n"
    assert [one.type for one in client.list_paused_job_types()] == ["removed"]


def test_a_typing_error_in_the_name_of_a_type(run: Run, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is paused by it, and lists say why they are empty."""
    client.start_chain(number, 1)
    refused = run("job-types", "pause", "numbr", "step", code=2)
    assert "no job and no live worker has type 'numbr': did you mean number?; " in refused
    assert "type 'step': the types are number; nothing was paused: to pause it all the same, add --force" in refused
    assert client.list_paused_job_types() == []
    for command in (
        ["chains", "list"], ["jobs", "list"], ["stats"], ["demand"], ["operations", "start", "retry"],
        ["prune", "--older-than", "1d", "--yes"], ["activity"], ["events", "list"],
    ):  # fmt: skip
        assert main([*command, "--type", "numbr"]) == 0
        assert capsys.readouterr().err == "queuert: no job and no live worker has type 'numbr': did you mean number?\n"
    for known in ("number", BULK_OPERATION_TYPE, DELIVERY_TYPE):
        assert main(["stats", "--type", known]) == 0
        assert capsys.readouterr().err == ""
    assert main(["stats", "--type", "a\x1b[31mb"]) == 0
    assert r"has type 'a\x1b[31mb'" in capsys.readouterr().err, "it is sent to the terminal as it is"


def test_types_that_only_workers_have(run: Run, client: Client) -> None:
    store = client.state.sync_store(max_connections=1)
    store.open()
    store.record_heartbeat(WorkerHeartbeat("one", "one", "here", 1, "1", ("step",), 1, 0, 0.0), 60.0)
    store.close()
    assert run("job-types", "pause", "step") == "paused 1: step\n"


def test_counts_say_what_holds_jobs(run: Run, client: Client) -> None:
    chain, *_ = client.start_chains(
        [NewChain(number, 1), NewChain(number, 1), NewChain(step, "x"), NewChain(order, "x")]
    )
    client.cancel_chain(chain)
    client.pause_job_types([step])
    store = client.state.sync_store(max_connections=1)
    store.open()
    limits = {"number": Limits(concurrency=1)}
    beat = WorkerHeartbeat("one", "one", "here", 1, "1", ("number", "step"), 1, 0, 0.0, limits=limits)
    store.record_heartbeat(beat, 60.0)
    assert len(store.claim(ClaimRequest({"number": 60.0}, 5, "one", new_token(), limits=limits))) == 1
    client.start_chain(number, 1)
    notes = {tuple(line.split()[:2]): line.split(None, 4)[4] for line in run("stats").splitlines()[1:]}
    assert notes.pop(("step", "ready")).startswith("paused since 20")
    assert notes == {
        ("number", "cancelled"): "-",
        ("number", "ready"): "limits hold back 1",
        ("number", "running"): "-",
        ("order", "ready"): "no live worker handles it",
    }
    found = {(one["type"], one["status"]): one for one in document(run, "stats")["items"]}
    assert [found["step", "ready"][name] for name in ("paused", "handled", "held_back")] == [True, True, 1]
    assert [found["number", "ready"][name] for name in ("paused", "handled", "held_back")] == [False, True, 1]
    assert not found["order", "ready"]["handled"]
    operation = client.start_bulk_operation("retry", requested_by="ana")
    for state, stopping in (
        (WorkerState.RUNNING, ""),
        (WorkerState.STOPPING, "; 1 worker that handles it is stopping (one)"),
    ):
        store.record_heartbeat(replace(beat, state=state), 60.0)
        handled = "no live worker handles it" + stopping if stopping else "limits hold back 1"
        [line] = [line for line in run("stats", "--type", "number").splitlines() if " ready " in line]
        assert line.endswith(handled)
        [done_by_all] = document(run, "stats", "--type", BULK_OPERATION_TYPE)["items"]
        assert done_by_all["handled"] is (state is WorkerState.RUNNING)
    client.cancel_chain(operation.id)
    for allowed, note in ((None, "clients complete it"), (0.0, "clients complete it; the oldest is overdue")):
        store.record_heartbeat(
            replace(beat, traits=(TypeTraits("order", completed_by_client=True, overdue_after=allowed),)), 60.0
        )
        [line] = [line for line in run("stats").splitlines() if line.startswith("order")]
        assert line.endswith(note)
        [one] = document(run, "stats", "--type", "order")["items"]
        assert (one["completed_by"], one["overdue_after"]) == ("client", allowed)
    store.close()


# --- prune ------------------------------------------------------------------------------------------------------------


def test_prune(run: Run, client: Client, dsn: str) -> None:
    """By age, type and status; a blocker of an open job stays."""
    ids = [client.start_chain(number, at).id for at in range(5)]
    other, blocker = client.start_chain(step, "x").id, client.start_chain(number, 9).id
    client.start_chain(step, "waits", blockers=[blocker, client.start_chain(order, "open")])
    for id in (*ids[:2], other, blocker):
        client.cancel_chain(id)
    client.complete_chain(ids[2], 1)
    failed_chains(client, dsn, 1)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE queuert.job SET created_at = created_at - interval '40 days', chain_closed_at = now() - interval"
            " '40 days' WHERE chain_closed_at IS NOT NULL AND id <> %s",
            (ids[1],),
        )
    cancelled = ("--older-than", "30d", "--status", "cancelled", "--type", "number")
    assert run("prune", *cancelled) == (
        "prune would delete 1 chain: add --yes to do it\n  type    status     count\n  number  cancelled  1\n"
    )
    would = document(run, "prune", "--older-than", "30d")
    assert (would["count"], would["more"]) == (4, False)
    assert {(one["type"], one["status"]): one["count"] for one in would["groups"]} == {
        ("number", "cancelled"): 1,
        ("number", "completed"): 1,
        ("number", "failed"): 1,
        ("step", "cancelled"): 1,
    }
    assert document(run, "prune", "--older-than", "50d") == {"count": 0, "more": False, "groups": []}
    assert len(all_ids(run)) == 10
    assert document(run, "prune", "--older-than", "50d", "--yes") == {"deleted": 0}
    assert run("prune", *cancelled, "--yes") == "deleted 1\n"
    assert set(ids[1:]) | {other, blocker} <= set(all_ids(run))
    assert run("prune", "--older-than", "30d", "--yes") == "deleted 3\n"
    left = all_ids(run)
    assert {ids[1], ids[3], ids[4], blocker} <= set(left)
    assert not {ids[0], ids[2], other} & set(left)


def all_ids(run: Run) -> list[str]:
    return ids(run, "chains", "list")


def test_prune_refuses_open_chains(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="got open: cancel open chains first"):
        client.prune_chains(older_than=60, statuses=["completed", "open"])
    with pytest.raises(ConfigurationError, match="older_than must be"):
        client.prune_chains(older_than=0)


def test_prune_refuses_no_age(run: Run) -> None:
    """The age that was given, as durations are printed."""
    for confirmed in ([], ["--yes"]):
        assert "above 0 and at most a hundred years, got 0 s\n" in run(
            "prune", "--older-than", "0s", *confirmed, code=2
        )


# --- why --------------------------------------------------------------------------------------------------------------


def test_why(run: Run, client: Client) -> None:
    leaf = client.start_chain(step, "x").id
    waiting = client.start_chain(number, 1, blockers=[leaf]).id
    client.pause_job_types([step], reason="a \x1b[31m red\nreason")
    lines = run("why", waiting).splitlines()
    assert lines[:3] == [
        f"chain {waiting} of type number: blocked", "  - waits for 1 open chain",
        "  - no live worker handles type number: no worker is alive",
    ]  # fmt: skip
    assert lines[3] == f"    chain {leaf} of type step: ready"
    assert lines[4].endswith("UTC: a  [31m red reason")
    found = document(run, "why", waiting)
    assert [reason["cause"] for reason in found["reasons"]] == ["blocked", "no_worker"]
    assert [reason["cause"] for reason in found["blockers"][0]["reasons"]] == ["type_paused", "no_worker"]
    assert "no-such" in run("why", "no-such", code=1)


@pytest.mark.parametrize("command", ["chains", "jobs"])
def test_show_says_why(run: Run, client: Client, command: str) -> None:
    chain = client.start_chain(number, 1).id
    assert "why it is not done:\n  chain" in run(command, "show", chain)
    client.cancel_chain(chain)
    assert "why it is not done" not in run(command, "show", chain)


def test_show_of_an_earlier_job_does_not_say_why(run: Run, client: Client) -> None:
    chain = client.start_chain(order, "x")
    following = client.continue_chain(chain, step, "y")
    assert "why it is not done" not in run("jobs", "show", chain.id)
    assert "why it is not done" in run("jobs", "show", following)


def test_chains_by_attributes(run: Run, client: Client) -> None:
    one = client.start_chain(number, 1, attributes={"user": 17, "tags": ["a", "x=y"]}).id
    two = client.start_chain(number, 1, attributes={"user": 17, "tags": ["a"]}).id
    client.start_chain(number, 1)
    assert ids(run, "chains", "list", "--attribute", "user=17") == [two, one]
    assert ids(run, "chains", "list", "--attribute", "user=17", "--attribute", "tags=x=y") == [one]
    assert ids(run, "chains", "list", "--attribute", "tags=a", "--attribute", "tags=x=y", "--type", "number") == [one]
    assert ids(run, "chains", "list", "--attribute", "user=18") == []
    assert document(run, "chains", "show", one)["attributes"] == {"user": "17", "tags": ["a", "x=y"]}
    assert '"user": "17"' in run("chains", "show", one)


def test_workers(run: Run, client: Client) -> None:
    assert run("workers") == "none\n"
    assert document(run, "workers") == {"items": [], "next_cursor": None}
    store = client.state.sync_store()
    store.open()
    for id, uptime in (("young", 1.0), ("old", 100.0)):
        store.record_heartbeat(WorkerHeartbeat(id, "name", "host-1", 17, "1.0", ("number",), 10, 3, uptime), 3600.0)
    store.record_heartbeat(WorkerHeartbeat("dead", "name", "host-1", 17, "1.0", ("number",), 10, 3, 5.0), 0.0)
    store.close()
    head, *lines = run("workers").splitlines()
    assert head.split()[:7] == ["id", "host", "pid", "version", "state", "running", "concurrency"]
    assert [line.split()[:7] for line in lines] == [
        [id, "host-1", "17", "1.0", "running", "3", "10"] for id in ("old", "young")
    ]
    items = document(run, "workers")["items"]
    assert [(one["id"], one["job_types"], one["state"]) for one in items] == [
        ("old", ["number"], "running"),
        ("young", ["number"], "running"),
    ]
    assert items[0]["seen_at"] > items[0]["started_at"]


def test_activity(run: Run, client: Client) -> None:
    assert run("activity") == "none\n"
    assert document(run, "activity")["items"] == []
    store = client.state.sync_store()
    store.open()
    beat = WorkerHeartbeat("one", "name", "host-1", 17, "1.0", ("number",), 10, 3, 1.0)
    now = store.record_heartbeat(beat, 60.0).replace(second=0, microsecond=0)
    run_seconds = Histogram((0, 0, 0, 0, 90, 0, 0, 0, 0, 0, 0, 30))
    wait_seconds = Histogram((0, 0, 0, 0, 0, 0, 0, 0, 1))
    minutes = [
        Activity(
            now - timedelta(minutes=at),
            60,
            "number",
            "one",
            started=60,
            completed=50,
            failed=1,
            wait=wait_seconds,
            run=run_seconds,
        )
        for at in (0, 1, 100)
    ]
    other = Activity(now, 60, "other", "one", retried=3, wait=Histogram((3,)))
    store.record_heartbeat(beat, 60.0, ActivityReport(1, [*minutes, other]))
    store.close()
    head, *lines = run("activity").splitlines()
    assert re.split(r" {2,}", head) == [
        "type", "started/min", "started", "completed", "failed", "retried",
        "wait p50", "wait p95", "run p50", "run p95",
    ]  # fmt: skip
    assert [re.split(r" {2,}", line) for line in lines] == [
        ["number", "2.0", "120", "100", "2", "0", "181 ms", "181 ms", "11 ms", "1.4 s"],
        ["other", "0.0", "0", "0", "0", "3", "0.5 ms", "0.5 ms", "-", "-"],
    ]
    [found] = document(run, "activity", "--type", "number", "--since", "5h")["items"]
    assert (found["started"], found["completed"], found["wait"]["p50"]) == (180, 150, pytest.approx(0.181, rel=0.01))
    assert found["run"]["buckets"] == [0, 0, 0, 0, 270, 0, 0, 0, 0, 0, 0, 90]
    assert found["run"]["p99"] == pytest.approx(1.448, rel=0.001)


@pytest.mark.parametrize("by", ["day", "", None])
def test_activity_is_by_minute_or_hour(client: Client, by: Any) -> None:
    with pytest.raises(ConfigurationError, match="by must be 'minute' or 'hour'"):
        client.get_activity(by=by)


def test_activity_needs_times_with_a_zone(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="since must be a datetime with a time zone"):
        client.get_activity(since=datetime(2026, 1, 1))
    with pytest.raises(ConfigurationError, match="until must be a datetime with a time zone"):
        client.get_activity(until=datetime(2026, 1, 1))


def test_a_schedule_is_run_now(run: Run, client: Client) -> None:
    client.put_schedules([RecurringSchedule("nightly", number, 1, cron="@daily", overlap="skip")])
    assert re.fullmatch(r"started nightly@\S+Z\n", run("schedules", "run", "nightly"))
    assert run("schedules", "run", "nightly", code=1) == "skipped nightly: its last chain is open\n"
    assert document(run, "schedules", "run", "nightly", code=1) == {"started": {"nightly": None}}
    assert "schedule 'nowhere' does not exist" in run("schedules", "run", "nowhere", code=1)
    [listed] = document(run, "schedules", "list")["items"]
    assert (listed["overlap"], listed["owner"], listed["last_at"]) == ("skip", None, None)


def test_a_schedule_is_backfilled(run: Run, client: Client) -> None:
    client.put_schedules([RecurringSchedule("nightly", number, 1, cron="@daily")])
    since = ["schedules", "backfill", "nightly", "--since", "2024-01-01T00:00Z"]
    assert run(*since, "--before", "2024-01-03T00:00Z") == "started the chains of 2 of 2 ticks\n"
    assert (
        run(*since, "--before", "2024-01-04T00:00Z") == "started the chains of 1 of 3 ticks: the others had a chain\n"
    )
    ids = [f"nightly@2024-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
    assert document(run, *since, "--before", "2024-01-04T00:00Z") == {"started": [], "existing": ids}
    assert "at most 1,000 ticks" in run("schedules", "backfill", "nightly", "--since", "2004-01-01T00:00Z", code=2)
    assert "required" in run("schedules", "backfill", "nightly", code=2)
    assert run("schedules", "backfill", "nightly", "--since", "1s").startswith("started the chains of 0 of 0")


def test_schedules(run: Run, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schedules", "list") == "none\n"
    client.put_schedules([RecurringSchedule(name, number, 1, cron="0 3 * * *") for name in ("nightly", "backup")])
    assert [line.split()[:2] for line in run("schedules", "list").splitlines()[1:]] == [
        ["backup", "number"],
        ["nightly", "number"],
    ]
    assert run("schedules", "pause", "nightly", "backup") == "paused 2: nightly, backup\n"
    assert run("schedules", "resume", "nightly", "nowhere", code=1) == "resumed 1: nightly\n"
    assert [(one["name"], one["paused"]) for one in document(run, "schedules", "list")["items"]] == [
        ("backup", True),
        ("nightly", False),
    ]
    assert document(run, "schedules", "delete", "backup", "nowhere", "--yes", code=1) == {"deleted": ["backup"]}
    assert [one.name for one in client.list_schedules()] == ["nightly"]
    assert "'nightl' does not exist: did you mean nightly?" in run("schedules", "run", "nightl", code=1)
    assert list(document(run, "schedules", "run", "nowhere", "nightly", code=1)["started"]) == ["nightly"]
    capsys.readouterr()
    assert main(["schedules", "pause", "elsewhere"]) == 1
    assert capsys.readouterr().err == "queuert: schedule 'elsewhere' does not exist: the schedules are nightly\n"


# --- what does not exist ----------------------------------------------------------------------------------------------

BY_KEY = ("--type", "number", "--key", "nowhere")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("why", "nowhere"), "'nowhere' does not exist"),
        (("chains", "show", "nowhere"), "chain 'nowhere' does not exist"),
        (("chains", "show", *BY_KEY), "has the deduplication key 'nowhere'"),
        (("chains", "tree", "nowhere"), "chain 'nowhere' does not exist"),
        (("chains", "cancel", "nowhere"), "chain 'nowhere' does not exist"),
        (("chains", "cancel", *BY_KEY), "has the deduplication key 'nowhere'"),
        (("chains", "retry", "nowhere"), "chain 'nowhere' does not exist"),
        (("chains", "reschedule", "nowhere", "--after", "2h"), "chain 'nowhere' does not exist"),
        (("chains", "reprioritize", "nowhere", "--priority", "1"), "chain 'nowhere' does not exist"),
        (("chains", "edit", "nowhere", "--input", "1"), "chain 'nowhere' does not exist"),
        (("chains", "send-event", "nowhere", "approved"), "chain 'nowhere' does not exist"),
        (("chains", "delete", "nowhere", "--yes"), "chain 'nowhere' does not exist"),
        (("jobs", "show", "nowhere"), "job 'nowhere' does not exist"),
        (("jobs", "trigger", "nowhere"), "job 'nowhere' does not exist"),
        (("events", "list", "--chain", "nowhere"), "chain 'nowhere' does not exist"),
        (("events", "tail", "--chain", "nowhere", "--once"), "chain 'nowhere' does not exist"),
        (("operations", "show", "nowhere"), "operation 'nowhere' does not exist: queuert operations list"),
        (("operations", "cancel", "nowhere"), "operation 'nowhere' does not exist: queuert operations list"),
        (("schedules", "pause", "nowhere"), "schedule 'nowhere' does not exist"),
        (("schedules", "resume", "nowhere"), "schedule 'nowhere' does not exist"),
        (("schedules", "delete", "nowhere", "--yes"), "schedule 'nowhere' does not exist"),
        (("schedules", "run", "nowhere"), "schedule 'nowhere' does not exist"),
        (("schedules", "backfill", "nowhere", "--since", "1h"), "schedule 'nowhere' does not exist"),
        (("webhooks", "rotate", "nowhere"), "there is no webhook 'nowhere'"),
        (("webhooks", "disable", "nowhere"), "there is no webhook 'nowhere'"),
        (("webhooks", "enable", "nowhere"), "there is no webhook 'nowhere'"),
        (("webhooks", "delete", "nowhere", "--yes"), "there is no webhook 'nowhere'"),
        (("webhooks", "ping", "nowhere"), "there is no webhook 'nowhere'"),
        (("webhooks", "deliveries", "nowhere"), "there is no webhook 'nowhere'"),
        (("webhooks", "replay", "nowhere", "--since", "1h"), "there is no webhook 'nowhere'"),
        (("webhooks", "replay", "nowhere", "--delivery", "nothing"), "delivery 'nothing' does not exist"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_does_not_exist_is_named_on_stderr_alone(
    dsn: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str, as_json: bool
) -> None:
    """By one rule for all commands: exit code 1, and nothing on standard output."""
    assert main([*arguments, "--url", dsn, *(["--json"] if as_json else [])]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("queuert: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_what_exists_beside_it_is_changed_and_printed(
    run: Run, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = client.start_chain(number, 1)
    assert document(run, "chains", "delete", "nowhere", chain.id, "--yes", code=1) == {"deleted": 1}
    main(["chains", "delete", chain.id, "nowhere", "--yes"])
    assert [line.split("'")[1] for line in capsys.readouterr().err.splitlines()] == [chain.id, "nowhere"]


# --- the way out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["chains", "list"], ["jobs", "show", "x"], ["stats"], ["job-types", "list"], ["schedules", "list"]]
)
def test_no_database_and_no_schema(
    arguments: list[str], bare_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUEUERT_URL", raising=False)
    assert main(arguments) == 2
    assert "QUEUERT_URL" in capsys.readouterr().err
    assert main([*arguments, "--url", bare_dsn]) == 3
    assert "queuert migrate up" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["stats"], ["chains", "list"], ["jobs", "show", "x"], ["doctor"], ["workers"], ["schedules", "list"]]
)
def test_a_file_that_does_not_exist_is_not_created(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nothing.db"
    assert main([*arguments, "--url", f"sqlite:///{file}"]) == 3
    assert f"the file '{file}' does not exist: check the address" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- bulk operations --------------------------------------------------------------------------------------------------


def test_an_operation_is_counted_first_and_then_carried_out(client: Client, run: Run, dsn: str) -> None:
    failed = failed_chains(client, dsn, 3)
    assert run("operations", "start", "retry", "--type", "number").startswith("retry would concern 3 chains: add --yes")
    groups = [{"type": "number", "status": "failed", "count": 3}]
    assert document(run, "operations", "start", "retry") == {"count": 3, "more": False, "groups": groups}
    assert client.get_chain(failed[0]).status == "failed"
    done = document(run, "operations", "start", "retry", "--type", "number", "--by", "ana", "--yes")
    assert (done["status"], done["seen"], done["changed"], done["requested_by"]) == ("completed", 3, 3, "ana")
    assert [client.get_chain(id).status for id in failed] == ["open"] * 3
    [listed] = document(run, "operations", "list")["items"]
    assert listed == done == document(run, "operations", "show", done["id"])
    assert "requested_by  ana" in run("operations", "show", done["id"])


def test_an_operation_of_workers_is_cancelled(client: Client, run: Run) -> None:
    client.start_chain(number, 1, attributes={"user": 17})
    how = ("reschedule", "--attribute", "user=17", "--after", "2h", "--yes", "--no-wait")
    started = document(run, "operations", "start", *how)
    assert (started["status"], started["attributes"]) == ("open", {"user": "17"})
    cancelled = document(run, "operations", "cancel", started["id"], "--by", "ben")
    assert run("operations", "run") == "did 0 batches\n"
    assert (cancelled["status"], cancelled["error"]["message"]) == ("cancelled", "cancelled by ben")


def test_an_operation_on_every_type_is_confirmed_as_such(client: Client, run: Run, dsn: str) -> None:
    failed = failed_chains(client, dsn, 2) + failed_chains(client, dsn, 1, step)
    for narrowed in ([], ["--status", "failed"]):
        refused = run("operations", "start", "retry", *narrowed, "--yes", code=2)
        assert "would retry chains of every type: add --type, --attribute, --since, --before or --error" in refused
    assert "--all only without --type" in run("operations", "start", "retry", "--all", "--since", "1h", code=2)
    assert run("operations", "start", "retry") == (
        "retry would concern 3 chains: add --all --yes to do it\n"
        "  type    status  count\n  number  failed  2\n  step    failed  1\n"
    )
    assert document(run, "operations", "start", "retry", "--all")["count"] == 3
    assert {client.get_chain(id).status for id in failed} == {"failed"}
    assert document(run, "operations", "start", "retry", "--all", "--yes")["changed"] == 3


def test_an_operator_leaves_the_batches_to_workers(
    client: Client, run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = failed_chains(client, dsn, 2)
    real = Client.run_bulk_operations

    def refused(self: Client, *, batches: int | None = None) -> int:
        # What a worker does, between the refusal and the next look.
        real(self, batches=batches)
        raise RightMissingError("permission denied", "run_bulk_operations", ["queuert_worker"])

    monkeypatch.setattr(Client, "run_bulk_operations", refused)
    assert document(run, "operations", "start", "retry", "--type", "number", "--yes")["changed"] == 2
    assert {client.get_chain(id).status for id in failed} == {"open"}


def test_an_operation_that_makes_no_progress_says_why(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_chains(client, dsn, 2)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    client.pause_job_types([BULK_OPERATION_TYPE], by="ben", reason="audit")
    monkeypatch.setattr("queuert.cli.operations._SILENCE", 0.0)
    monkeypatch.setattr("queuert.cli.operations._POLL", 0.001)
    explained = why.of_open_chain
    times = []

    def resumed(of: Client, id: str) -> Explanation | None:
        times.append(explanation := explained(of, id))
        if len(times) == 4:
            client.resume_job_types([BULK_OPERATION_TYPE])
        assert explanation is not None
        # As texts of workers have it: when they were last heard of.
        return replace(
            explanation, reasons=tuple(replace(one, text=f"{one}, look {len(times)}") for one in explanation.reasons)
        )

    monkeypatch.setattr(operations, "of_open_chain", resumed)
    assert main(["operations", "start", "retry", "--type", "number", "--yes"]) == 0
    said = capsys.readouterr()
    assert "changed       2" in said.out
    # Once, though it looked four times: at the first look it may have made progress just before.
    assert said.err.count("makes no progress") == 1
    assert f"type {BULK_OPERATION_TYPE} is paused" in said.err
    assert "look 2" in said.err
    assert len(times) == 4


def test_operations_refuse_what_they_cannot_do(client: Client, run: Run) -> None:
    chain = client.start_chain(number, 1)
    assert "only with --yes" in run("operations", "start", "retry", "--no-wait", code=2)
    assert "must not be given together" in run(
        "operations", "start", "reschedule", "--at", "2030-01-01T00:00Z", "--after", "1h", "--all", "--yes", code=2
    )
    for confirmed in ([], ["--yes"]):
        assert "needs --at or --after" in run("operations", "start", "reschedule", *confirmed, code=2)
        assert "needs --priority" in run("operations", "start", "reprioritize", *confirmed, code=2)
        assert "only with cancel, got retry" in run("operations", "start", "retry", "--reason", "x", *confirmed, code=2)
    assert "statuses of a bulk retry" in run("operations", "start", "retry", "--status", "open", code=2)
    assert "does not exist" in run("operations", "show", "nowhere", code=1)
    for action in ("show", "cancel"):
        refused = run("operations", action, chain.id, code=1)
        assert refused == f"queuert: chain '{chain.id}' is of job type 'number', not '{BULK_OPERATION_TYPE}'\n"
    assert client.get_chain(chain.id).status == "open"


def test_the_error_of_a_list_selects_chains(
    client: Client, run: Run, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is shown whole and as `--error` takes it, however long it is."""
    long, other = failed_chains(client, dsn, 1), failed_chains(client, dsn, 1)
    message = "there is no answer: " + "x" * 300
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE queuert.job SET error = error || jsonb_build_object('message', %s::text) WHERE id = %s",
            (f"{message}\nsecond line", long[0]),
        )
    for command in ("chains", "jobs"):
        assert {line.partition("ValueError")[2] for line in run(command, "list").splitlines()[1:]} == {
            f": {message[:200]}...",
            ": no",
        }
    error = run("chains", "list").splitlines()[2].split("  ")[-1].strip()
    assert error == f"ValueError: {message[:200]}..."
    count = "retry would concern 1 chain: add --yes to do it\n"
    assert run("operations", "start", "retry", "--error", error).startswith(count)
    capsys.readouterr()
    assert main(["operations", "start", "retry", "--error", f"handler: {error[:60]}..."]) == 0
    said = capsys.readouterr()
    assert said.out == "retry would concern 0 chains\n"
    assert said.err == "queuert: no chain matches: --error must be the whole error, as queuert chains list shows it\n"
    assert main(["operations", "start", "retry", "--error", "nothing", "--yes", "--no-wait"]) == 0
    assert "queuert: no chain matches: --error must be" in capsys.readouterr().err
    assert main(["operations", "start", "retry", "--since", "2100-01-01T00:00Z"]) == 0
    assert capsys.readouterr().err == "queuert: no chain matches\n"
    assert client.get_chain(other[0]).status == "failed"


def test_an_error_with_a_tab_is_taken_as_it_is_listed(client: Client, run: Run, dsn: str) -> None:
    [failed] = failed_chains(client, dsn, 1)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE queuert.job SET error = error || jsonb_build_object('message', %s::text) WHERE id = %s",
            ("no\tanswer\xa0yet", failed),
        )
    error = run("chains", "list").splitlines()[1].split("  ")[-1].strip()
    assert error == r"ValueError: no\tanswer\xa0yet"
    assert document(run, "operations", "start", "retry", "--error", error, "--yes")["changed"] == 1


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        (("--all",), True),
        (("--error", "ValueError: no", "--no-wait"), True),
        (("--all", "--no-wait"), False),
    ],
)
def test_an_operation_is_started_before_it_is_counted(
    client: Client,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: tuple[str, ...],
    counts: bool,
) -> None:
    """A count that fails is said, and no more; chains of a later time are not counted."""
    failed_chains(client, dsn, 1)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    started = list[str]()

    def refused(self: Client, action: str, **filter: Any) -> BulkPreview:
        [operation] = client.list_bulk_operations()
        started.append(operation.id)
        assert filter["before"] == operation.created_at
        raise StateUnavailableError("gone")

    monkeypatch.setattr(Client, "preview_bulk_operation", refused)
    assert main(["operations", "start", "retry", *how, "--yes"]) == 0
    said = capsys.readouterr().err
    assert len(started) == counts
    assert ("could not be counted: gone" in said) == counts
    assert "no chain matches" not in said
    [operation] = client.list_bulk_operations()
    assert operation.status == ("open" if "--no-wait" in how else "completed")


def test_an_operation_that_workers_have_begun_has_matches(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the count, which comes later, finds none any more. One that has found nothing says so at its end."""
    failed_chains(client, dsn, 1)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    counted = Client.preview_bulk_operation

    def after_workers(self: Client, action: str, **filter: Any) -> BulkPreview:
        client.run_bulk_operations()
        return counted(self, action, **filter)

    monkeypatch.setattr(Client, "preview_bulk_operation", after_workers)
    for wait in ("--no-wait", "--json"):
        assert main(["operations", "start", "retry", "--error", "ValueError: no", "--yes", wait]) == 0
        assert ("no chain matches" in capsys.readouterr().err) == (wait == "--json")


def test_operations_are_listed_by_status_and_action(client: Client, run: Run, dsn: str) -> None:
    failed_chains(client, dsn, 1)
    first = client.start_bulk_operation("retry", requested_by="ana").id
    client.run_bulk_operations()
    others = [
        client.start_bulk_operation(action, requested_by="ana").id for action in ("cancel", "retry", "cancel", "retry")
    ]
    cancel, retry, last_cancel, last_retry = others
    assert ids(run, "operations", "list") == [*others[::-1], first]
    assert ids(run, "operations", "list", "--status", "completed") == [first]
    assert ids(run, "operations", "list", "--action", "cancel") == [last_cancel, cancel]
    assert ids(run, "operations", "list", "--action", "retry", "--status", "open") == [last_retry, retry]
    assert ids(run, "operations", "list", "--action", "retry", "--action", "cancel", "--limit", "5") == [
        *others[::-1],
        first,
    ]
    seen, cursor = list[str](), list[str]()
    while True:
        page = document(run, "operations", "list", "--action", "retry", "--limit", "1", *cursor)
        seen += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = ["--cursor", page["next_cursor"]]
    assert seen == [last_retry, retry, first]
    assert ids(run, "operations", "list", "--action", "delete") == []
    with pytest.raises(ConfigurationError, match="action must be among"):
        client.list_bulk_operations(actions=["explode"])
    with pytest.raises(ConfigurationError, match=r"actions must be a sequence of .*, got 'retry'"):
        client.list_bulk_operations(actions="retry")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_the_progress_of_an_operation(
    client: Client,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
) -> None:
    failed_chains(client, dsn, 5)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    monkeypatch.setattr("queuert.cli.operations._PROGRESS", 0.0)
    monkeypatch.setattr("queuert.client.sync_bulk_runner.BATCH", 2)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert main(["operations", "start", "retry", "--all", "--yes"]) == 0
    _, _, said = capsys.readouterr().err.partition("is started\n")
    lines = [f"queuert: {seen} of about 5 chains seen, {seen} changed" for seen in (2, 4)]
    assert said == "".join(f"\r{line}\x1b[K" if terminal else f"{line}\n" for line in lines) + "\n" * terminal


def test_an_error_ends_the_line_of_the_progress(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_chains(client, dsn, 3)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    monkeypatch.setattr("queuert.client.sync_bulk_runner.BATCH", 2)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    real = Client.run_bulk_operations
    done = list[int]()

    def once(self: Client, *, batches: int | None = None) -> int:
        if done:
            raise StateUnavailableError("gone")
        done.append(real(self, batches=batches))
        return done[-1]

    monkeypatch.setattr(Client, "run_bulk_operations", once)
    assert main(["operations", "start", "retry", "--all", "--yes"]) != 0
    _, _, said = capsys.readouterr().err.partition("is started\n")
    assert said.startswith("\rqueuert: 2 of about 3 chains seen, 2 changed\x1b[K\nqueuert: gone")


def test_an_operation_goes_on_after_an_interrupt(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_chains(client, dsn, 2)
    monkeypatch.setenv("QUEUERT_URL", dsn)
    real = Client.run_bulk_operations

    def interrupted(self: Client, *, batches: int | None = None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "run_bulk_operations", interrupted)
    assert main(["operations", "start", "retry", "--all", "--yes"]) == 130
    [operation] = client.list_bulk_operations()
    id = operation.id
    assert operation.status == "open"
    started, line = capsys.readouterr().err.splitlines()
    assert started == f"queuert: operation {id} is started"
    assert line == (
        f"queuert: interrupted: workers carry on with operation {id}; queuert operations show {id} says how far it is, "
        f"and queuert operations cancel {id} ends it"
    )
    monkeypatch.setattr(Client, "run_bulk_operations", real)
    client.run_bulk_operations()
    assert main(["operations", "cancel", id]) == 0
    assert capsys.readouterr().err == f"queuert: operation {id} is completed already: nothing was cancelled\n"


def test_cascades_inputs_times_and_priorities(client: Client, run: Run, dsn: str) -> None:
    [blocker] = failed_chains(client, dsn, 1)
    assert run("chains", "retry", blocker, "--cascade") == "retried 1\n"
    parent = client.start_chain(number, 1, blockers=[blocker])
    assert run("chains", "cancel", parent.id, "--cascade").startswith("cancelled 2;")
    assert run("chains", "retry", blocker, "--input", "17") == "retried 1\n"
    assert client.get_job(blocker).input == 17
    assert "must be JSON" in run("chains", "retry", blocker, "--input", "{", code=2)
    assert "only with one id" in run("chains", "retry", blocker, parent.id, "--input", "1", code=2)
    assert "only with ids" in run("chains", "cancel", "--key", "k", "--type", "number", "--cascade", code=2)
    assert run("chains", "reschedule", blocker, parent.id, "--at", "2099-01-01T00:00Z", code=1) == (
        "rescheduled 1; running or closed, so not changed: 1\n"
    )
    assert client.get_job(blocker).scheduled_at.year == 2099
    assert "the time is missing" in run("chains", "reschedule", blocker, code=2)
    assert run("chains", "reprioritize", blocker, "--priority", "9") == "reprioritized 1\n"
    assert run("chains", "reprioritize", parent.id, "--priority", "9", code=1).startswith("reprioritized 0; running")
    assert client.get_job(blocker).priority == 9


def test_who_paused_a_type_is_shown(client: Client, run: Run) -> None:
    chain = client.start_chain(number, 1)
    run("job-types", "pause", "number", "--by", "ana", "--reason", "the gateway is down")
    [paused] = document(run, "job-types", "list")["items"]
    assert (paused["by"], paused["reason"]) == ("ana", "the gateway is down")
    [counted] = document(run, "stats")["items"]
    assert (counted["paused"], counted["paused_by"], counted["paused_at"]) == (True, "ana", paused["paused_at"])
    assert counted["pause_reason"] == "the gateway is down"
    assert re.search(r"paused since 20\S+ \S+ by ana: the gateway is down", run("stats"))
    assert re.search(r"type number is paused since 20.* UTC by ana: the gateway is down", run("why", chain.id))


def test_a_table_has_no_column_of_payloads_unless_they_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    """The answers of receivers: `--json` leaves them out as well."""
    attempt = SimpleNamespace(at=datetime.now(UTC), status=200, response="secret")
    for payloads in (False, True):
        print_page([attempt], ("at", "status", "response"), WebhookAttemptDocument, as_json=False, payloads=payloads)
        printed = capsys.readouterr().out
        assert ("secret" in printed, "response" in printed) == (payloads, payloads)


def test_nor_has_one_that_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(events, "_COLUMNS", ("job_id", "note"))
    monkeypatch.setattr(EventDocument, "hidden", {"note": Hidden.PAYLOADS})
    for payloads in (False, True):
        event: Any = SimpleNamespace(job_id="a", note="secret")
        events._print_lines([event], argparse.Namespace(json=False, payloads=payloads))
        assert ("secret" in capsys.readouterr().out) == payloads
