"""Documents: what is shown of values as JSON, what is left out, and the schema that is kept in a file."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from queuert import documents
from queuert.bulk_operations import BulkOperation
from queuert.chain_trees import ChainTree
from queuert.documents import Document
from queuert.event_log import JobEvent
from queuert.explanations import Cause, Explanation, Reason
from queuert.jobs import (
    Blocker,
    ChainRecord,
    ChainState,
    ChainStatus,
    Job,
    JobError,
    JobFailure,
    JobProgress,
    JobStatus,
    JobStep,
    PhaseProgress,
)
from queuert.limits import PausedType
from queuert.phases import JobPhase
from queuert.run_at import RunAt
from queuert.state.types import ScheduleRecord
from queuert.state.webhooks import WebhookAttempt
from queuert.webhooks.endpoints import Webhook, WebhookFilter
from queuert.workers import WorkerRecord
from scripts import documents_schema

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ERROR = JobError("handler", "no secret", "ValueError", "line 1 of secret")
PHASE = PhaseProgress("cut", 1, 2, 0.5, 1, NOW)
PROGRESS = JobProgress(0.25, 1.0, 4.0, {"at": "secret"}, NOW, PHASE)

JOB = Job(
    id="a",
    type="resize",
    chain_id="a",
    chain_index=0,
    status=JobStatus.READY,
    priority=0,
    attempt=1,
    uncounted=0,
    lease_expirations=0,
    open_blockers=0,
    input={"url": "secret"},
    output="secret",
    last_error=ERROR,
    created_at=NOW,
    scheduled_at=NOW,
    started_at=None,
    finished_at=None,
    holder=None,
    lease_expires_at=None,
    continued_by=None,
    progress=PROGRESS,
    failures=(JobFailure(1, NOW, NOW, "worker", ERROR),),
)

CHAIN = ChainRecord(
    id="a",
    type="resize",
    status=ChainStatus.FAILED,
    input='"secret"',
    output=None,
    error=ERROR,
    tail_type="resize",
    created_at=NOW,
    closed_at=NOW,
    tail_id="a",
    attributes={"user": "17", "tags": ("x", "y")},
)

SHOWN: list[tuple[type[Any], type[Document], set[str]]] = [
    (JobError, documents.ErrorDocument, set()),
    (JobFailure, documents.FailureDocument, set()),
    (PhaseProgress, documents.PhaseProgressDocument, set()),
    (JobProgress, documents.ProgressDocument, set()),
    (JobPhase, documents.PhaseDocument, set()),
    (ChainState, documents.ChainStateDocument, set()),
    # The handle of a chain, which is shown, has no other names than its record.
    (ChainRecord, documents.ChainDocument, {"input", "output", "tail_type", "tail_id"}),
    (Job, documents.JobDocument, set()),
    (JobStep, documents.StepDocument, set()),
    (Blocker, documents.BlockerDocument, set()),
    (ChainTree, documents.ChainTreeDocument, {"chain"}),
    (JobEvent, documents.EventDocument, set()),
    (WorkerRecord, documents.WorkerDocument, set()),
    (ScheduleRecord, documents.ScheduleDocument, set()),
    (PausedType, documents.PausedTypeDocument, set()),
    (Reason, documents.ReasonDocument, set()),
    (Explanation, documents.ExplanationDocument, set()),
    (RunAt, documents.RunAtDocument, set()),
    (BulkOperation, documents.BulkOperationDocument, set()),
    (Webhook, documents.WebhookDocument, {"filter"}),
    (WebhookFilter, documents.WebhookDocument, set()),
    (WebhookAttempt, documents.WebhookAttemptDocument, {"endpoint_id"}),
]
"""Values, their documents, and the fields that no document has."""


def shown(document: type[Document], value: object, **shows: bool) -> Any:
    """The JSON of a value, read back."""
    return json.loads(document.of(value, **shows).as_json())


def test_the_schema_in_the_file_is_that_of_the_code() -> None:
    """A shape changes only where a reviewer sees it."""
    written = json.loads(documents_schema.FILE.read_text(encoding="utf-8"))
    assert written == documents_schema.schema(), "run make format"


@pytest.mark.parametrize(("value", "document", "left_out"), SHOWN, ids=lambda one: getattr(one, "__name__", ""))
def test_each_field_of_a_value_is_shown_or_left_out_by_name(
    value: type[Any], document: type[Document], left_out: set[str]
) -> None:
    names = {field.name for field in fields(value)}
    assert left_out <= names
    assert names - set(document.model_fields) == left_out


def test_payloads_and_errors_are_in_the_json_only_if_they_are_to_be_shown() -> None:
    plain = shown(documents.JobDocument, JOB)
    assert not {"input", "output", "last_error", "failures"} & plain.keys()
    assert plain["progress"] == {
        "fraction": 0.25,
        "done": 1.0,
        "total": 4.0,
        "at": "2026-01-02T03:04:05Z",
        "phase": {
            "name": "cut",
            "number": 1,
            "count": 2,
            "fraction": 0.5,
            "attempt": 1,
            "started_at": "2026-01-02T03:04:05Z",
        },
    }
    assert plain["started_at"] is None
    with_errors = shown(documents.JobDocument, JOB, errors=True)
    assert with_errors["last_error"]["message"] == with_errors["failures"][0]["error"]["message"] == "no secret"
    assert not {"input", "output", "message"} & {*with_errors, *with_errors["progress"]}
    without_errors = shown(documents.JobDocument, JOB, payloads=True, errors=False)
    assert (without_errors["input"], without_errors["progress"]["message"]) == ({"url": "secret"}, {"at": "secret"})
    assert not {"last_error", "failures"} & without_errors.keys()
    everything = shown(documents.JobDocument, JOB, payloads=True)
    assert everything.keys() == {field.name for field in fields(Job)}


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (documents.JobDocument, JOB),
        (documents.ChainDocument, CHAIN),
        (documents.ChainTreeDocument, ChainTree(CHAIN, blockers=(ChainTree(CHAIN),))),  # type: ignore[type-var]
        (documents.PhaseDocument, JobPhase("cut", 1, "failed", 1, NOW, None, PROGRESS, ERROR, "secret")),  # type: ignore[arg-type]
        (documents.StepDocument, JobStep(1, "mail", 1, NOW, "secret")),
        (documents.BlockerDocument, Blocker("a", "resize", ChainStatus.FAILED, "secret", ERROR)),
        (documents.ScheduleDocument, ScheduleRecord("s", "resize", '"secret"', None, 60.0, "UTC", "skip")),  # type: ignore[arg-type]
        (documents.ReasonDocument, Reason(Cause.CLOSED, "failed: no secret")),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_nothing_secret_is_shown_by_default(document: type[Document], value: object) -> None:
    assert "secret" not in document.of(value).as_json()
    assert "secret" in document.of(value, payloads=True).as_json()


def test_a_tree_is_shown_with_the_chains_in_it() -> None:
    tree = shown(documents.ChainTreeDocument, ChainTree(CHAIN, blockers=(ChainTree(CHAIN, "a", repeated=True),)))  # type: ignore[type-var]
    [blocker] = tree["blockers"]
    assert (tree["id"], tree["waiting_job_id"], tree["attributes"]) == ("a", None, {"user": "17", "tags": ["x", "y"]})
    assert (blocker["id"], blocker["waiting_job_id"], blocker["repeated"], blocker["blockers"]) == ("a", "a", True, [])


def test_the_input_of_a_schedule_is_json() -> None:
    schedule = ScheduleRecord("s", "resize", '{"a": 1}', None, 60.0, "UTC", "skip")  # type: ignore[arg-type]
    assert shown(documents.ScheduleDocument, schedule, payloads=True)["input"] == {"a": 1}


@pytest.mark.parametrize(
    ("payload", "read"),
    [(float("nan"), None), (b"\x00\xff", "AP8="), ("\ud800", "\ud800"), (object, None), ({1: 2}, {"1": 2})],
)
def test_a_payload_that_json_cannot_have_is_shown_all_the_same(payload: object, read: object) -> None:
    found = shown(documents.StepDocument, JobStep(1, "mail", 1, NOW, payload), payloads=True)["result"]
    assert isinstance(found, str) if payload is object else found == read


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"input": "\ud800"}, '{"input": "\\ud800"}'),
        ({"input": {"\ud800": 1}}, '{"input": {"\\ud800": 1}}'),
        ({"input": [float("inf"), b"\xff"]}, '{"input":[null,"_w=="]}'),
    ],
)
def test_any_payload_has_json(value: object, text: str) -> None:
    """Whoever has written it to the table by hand: the other jobs of the page are to be shown."""
    assert documents.json_text(value) == text


def test_a_payload_of_any_depth_has_json() -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    assert list(json.loads(documents.json_text({"input": deep}))) == ["input"]
