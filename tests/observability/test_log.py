"""Every event as a record of the standard log: complete, readable, and safe from what ids may contain."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from queuert.jobs import AbortReason, ChainStatus, JobError
from queuert.observability import LogObservability, Observers, events
from queuert.observability.escaping import MAX_LENGTH, escape
from queuert.observability.log import SENTENCES

EVENTS = [
    value
    for name, value in inspect.getmembers(events, inspect.isclass)
    if issubclass(value, events.Event) and value is not events.Event and not name.startswith("_")
]
VALUES: dict[str, Any] = {
    "types": ("resize", "publish"),
    "status": ChainStatus.FAILED,
    "reason": AbortReason.NOT_FOUND,
    "holder": None,
}
HOSTILE = "x\nERROR forged\r\x1b[31m\x00\u202e\u2028\ud800"


def example(kind: type[events.Event], text: str = "") -> events.Event:
    """An event whose texts are the names of their fields, or the given text."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "error" and "JobError" in str(field.type):
            values[field.name] = JobError("handler", text or "the error", text or "app.Broken", f"line 1\n{text}")
        elif field.name == "stack":
            values[field.name] = f"line 1\n{text}"
        elif field.name in VALUES:
            values[field.name] = VALUES[field.name]
        else:
            values[field.name] = {"int": 7, "bool": True, "float": 1.5, "float | None": None}.get(
                str(field.type), text or f"the {field.name}"
            )
    return kind(**values)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the test's own that lets everything pass."""
    logger = logging.getLogger("tests.observability.log")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.setLevel(logging.NOTSET)


def logged(event: events.Event, logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.clear()
    LogObservability(logger).emit(event)
    (record,) = caplog.records
    return record


every_event = pytest.mark.parametrize("kind", EVENTS)


def test_there_is_a_sentence_for_each_event() -> None:
    assert len(EVENTS) > 20
    assert set(SENTENCES) == set(EVENTS)


@pytest.mark.parametrize("event", [None, "approved"])
def test_an_attempt_that_waits_for_an_event_names_it(
    event: str | None, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    snoozed = events.AttemptSnoozed(
        worker="w", job_id="j", chain_id="c", type="t", attempt=1, duration=0.5, due_in=60.0, awaited_event=event
    )
    record = logged(snoozed, logger, caplog)
    wait = "on when the event approved is sent, or in 60.000 s without it:" if event else "on in 60.000 s:"
    assert f"ended after 0.500 s to go {wait} the attempt does not count" in record.getMessage()
    assert vars(record)["queuert_awaited_event"] == event


@pytest.mark.parametrize(("failed", "text"), [(False, "is tried again"), (True, "has failed for good")])
def test_an_expired_lease_says_what_becomes_of_the_job(
    failed: bool, text: str, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    reaped = events.JobReaped(worker="w", job_id="j", chain_id="c", type="t", attempt=2, holder="x", failed=failed)
    record = logged(reaped, logger, caplog)
    lease = "the lease of worker x on attempt 2 of job j (t, chain c) expired"
    assert record.getMessage() == f"{lease}: the attempt counts as failed, and the job {text} (reaped by w)"
    assert vars(record)["queuert_failed"] is failed


@pytest.mark.parametrize(
    ("user", "outcome", "error", "text"),
    [
        ("ada", "done", None, "user ada, over http: /chains/{id}/cancel of id=a: done"),
        (None, "failed", "not-found", "user unknown, over http: /chains/{id}/cancel of id=a: failed, not-found"),
    ],
)
def test_a_change_that_was_made_has_no_error(
    user: str | None,
    outcome: str,
    error: str | None,
    text: str,
    logger: logging.Logger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    acted = events.OperatorActed(
        user=user, interface="http", change="/chains/{id}/cancel", target="id=a", outcome=outcome, error=error
    )
    assert logged(acted, logger, caplog).getMessage() == text


@pytest.mark.parametrize("value", [True, False])
@every_event
def test_a_sentence_has_words_for_a_flag(
    kind: type[events.Event], value: bool, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    flags: dict[str, Any] = {field.name: value for field in fields(kind) if str(field.type) == "bool"}
    record = logged(replace(example(kind), **flags), logger, caplog)
    assert not re.search("True|False", record.getMessage())
    assert {name: vars(record)[f"queuert_{name}"] for name in flags} == flags


def test_what_the_flags_say(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    started = events.ChainStarted(chain_id="c", type="t", in_callers_transaction=False)
    assert logged(started, logger, caplog).getMessage() == "chain c (t) started"
    started = replace(started, in_callers_transaction=True, committed=False)
    said = "chain c (t) started, in the caller's transaction, not committed yet"
    assert logged(started, logger, caplog).getMessage() == said


@pytest.mark.parametrize("kind", [events.AttemptAborted, events.FinishRejected])
@pytest.mark.parametrize("reason", AbortReason)
def test_a_cancellation_is_no_warning(
    kind: Any, reason: AbortReason, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    event = kind(worker="w", job_id="j", chain_id="c", type="t", attempt=1, reason=reason)
    record = logged(event, logger, caplog)
    assert record.levelname == ("INFO" if reason is AbortReason.CANCELLED else "WARNING")


@every_event
def test_a_record_says_all(kind: type[events.Event], logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    event = example(kind)
    record = logged(event, logger, caplog)
    assert record.levelname == event.own_level.upper()
    assert vars(record)["queuert_event"] == kind.__name__
    for field in fields(kind):
        attribute = "queuert_observed_event" if field.name == "event" else f"queuert_{field.name}"
        assert attribute in vars(record)
        if field.name == "stack":
            assert vars(record)[attribute] == "line 1\n"
        elif str(field.type) == "str":
            assert f"the {field.name}" in record.getMessage()
            assert vars(record)[attribute] == f"the {field.name}"
        elif "int" in str(field.type):
            assert "7" in record.getMessage()
            assert vars(record)[f"queuert_{field.name}"] == 7


@every_event
def test_no_text_can_forge_a_line(
    kind: type[events.Event], logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    record = logged(example(kind, HOSTILE), logger, caplog)
    texts = [record.getMessage(), *(str(value) for name, value in vars(record).items() if name.startswith("queuert_"))]
    for text in texts:
        lines = text.split("\n") if text.startswith("line 1\n") else [text]
        assert all(line.isprintable() for line in lines)
    if any(str(field.type) == "str" for field in fields(kind)):
        assert r"x\nERROR forged\r\x1b[31m\x00\u202e\u2028\ud800" in record.getMessage()


def test_a_template_is_left_alone_by_percent_signs(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    event = events.NotificationDropped(adapter="%s %(error)s", error="100 %d")
    assert logged(event, logger, caplog).getMessage() == "%s %(error)s could not send a notification: 100 %d"


def test_an_error_comes_with_its_kind_and_traceback(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    event = events.AttemptFailed(
        worker="w",
        job_id="j",
        chain_id="c",
        type="t",
        attempt=3,
        duration=1.23456,
        error=JobError("handler", "no\nway", "app.Broken", "Traceback:\n\tfile\x1b[0m\napp.Broken: no"),
    )
    record = logged(event, logger, caplog)
    assert record.getMessage() == (
        r"attempt 3 of job j (t, chain c) on worker w failed after 1.235 s, and the job with it: app.Broken: no\nway"
    )
    found = {name: value for name, value in vars(record).items() if name.startswith("queuert_error")}
    assert found == {
        "queuert_error": r"app.Broken: no\nway",
        "queuert_error_kind": "handler",
        "queuert_error_type": "app.Broken",
        "queuert_error_traceback": "Traceback:\n\tfile\\x1b[0m\napp.Broken: no",
    }


def test_an_error_without_class_and_traceback(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    event = events.AttemptCancelled(
        worker="w", job_id="j", chain_id="c", type="t", attempt=1, duration=0, error=JobError("cancel", "enough")
    )
    record = logged(event, logger, caplog)
    assert record.getMessage().endswith(": enough")
    assert vars(record)["queuert_error_type"] is None
    assert vars(record)["queuert_error_traceback"] is None


def test_an_event_of_a_later_version_shows_its_fields(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Surprise(events.Event):
        who: str
        count: int

    assert logged(Surprise(who="me\n", count=2), logger, caplog).getMessage() == r"Surprise: who=me\n count=2"


class _Watched(str):
    """A text that knows whether anybody looked at it."""

    looked_at = 0

    def __str__(self) -> str:
        type(self).looked_at += 1
        return super().__str__()

    def isprintable(self) -> bool:
        type(self).looked_at += 1
        return super().isprintable()


def test_an_event_without_fields_is_logged(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Silence(events.Event):
        pass

    assert logged(Silence(), logger, caplog).getMessage() == "Silence:"


def test_a_level_that_is_off_costs_no_formatting(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    event = events.NotificationDropped(adapter="a", error=_Watched("e"))
    logger.setLevel(logging.ERROR)
    LogObservability(logger).emit(event)
    assert not caplog.records
    assert _Watched.looked_at == 0
    logger.setLevel(logging.WARNING)
    LogObservability(logger).emit(event)
    assert len(caplog.records) == 1
    assert _Watched.looked_at > 0


def test_the_default_logger_is_queuerts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "queuert"):
        LogObservability().emit(events.ListenerRestored(adapter="PostgresNotify"))
    assert [record.name for record in caplog.records] == ["queuert"]


def test_a_long_text_is_cut() -> None:
    text = escape("x" * 10_000)
    assert text.startswith("x" * MAX_LENGTH + "...")
    assert text.endswith("(10000 characters)")
    assert len(text) < MAX_LENGTH + 40


@pytest.mark.parametrize("text", ["", "plain", "größe 日本語 😀", "back\\slash", "a b"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


class _Broken:
    def emit(self, event: events.Event) -> None:
        raise RuntimeError("the adapter is broken")


class _Listening:
    def __init__(self) -> None:
        self.heard: list[events.Event] = []

    def emit(self, event: events.Event) -> None:
        self.heard.append(event)


def test_an_adapter_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    before, after = _Listening(), _Listening()
    event = events.ListenerRestored(adapter="PostgresNotify")
    Observers([before, _Broken(), after]).emit(event)
    assert event in before.heard
    assert event in after.heard
    for listening in (before, after):
        (failure,) = (one for one in listening.heard if isinstance(one, events.ObserverFailed))
        assert (failure.adapter, failure.event) == ("_Broken", "ListenerRestored")
        assert "the adapter is broken" in failure.error
    assert "the adapter is broken" in caplog.text


def test_two_adapters_that_raise_disturb_nobody() -> None:
    listening = _Listening()
    Observers([_Broken(), listening, _Broken()]).emit(events.ListenerRestored(adapter="PostgresNotify"))
    assert [type(event) for event in listening.heard].count(events.ObserverFailed) == 2
