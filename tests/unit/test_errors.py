"""The tree of errors: documented, picklable, one root."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest

from queuert import errors
from queuert.callbacks import InvalidCallbackError
from queuert.cli.exit_codes import exit_code
from queuert.web.problems import _CODES, problem_of
from queuert.webhooks.errors import WebhookVerificationError

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception) and not issubclass(value, Warning)
]

EXAMPLES: list[errors.QueuertError] = [
    errors.UnknownJobTypeError("resise", ["resize", "publish"]),
    errors.PayloadError(job_type="resize", field="input", path="input.url", reason="missing"),
    errors.PayloadDecodeError(job_type="resize", field="input", path="input.url", reason="missing"),
    errors.JobIdConflictError(["a", "b"]),
    errors.JobNotFoundError("a"),
    errors.ScheduleOverlapError("nightly", "a"),
    errors.ChainNotFoundError("a", ids=["a", "b"]),
    errors.ChainNotRetriableError("a", "open", chain_ids=["a", "b"]),
    errors.BlockerReferenceError([("a", "job")]),
    errors.JobTypeMismatchError("a", "resize", "publish"),
    errors.WaitTimeoutError(["a"], 3.0),
    errors.JobFailedError("a", "failed: boo"),
    errors.ChainCancelledError("a", "was cancelled"),
    errors.LeaseLostError("a", "not_found"),
    errors.StateUnavailableError("gone"),
    errors.ScheduleOwnerError("nightly", "billing", None),
    errors.EventTimeoutError("paid"),
    errors.EventLimitError("a", "100 events"),
    errors.RightMissingError("permission denied", "cancel_chains", ["queuert_operator"]),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_documented_and_in_the_tree(error: type[Exception]) -> None:
    assert issubclass(error, errors.QueuertError)
    assert error.__doc__
    assert error.__name__ in (errors.__doc__ or "") or error is errors.QueuertError


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.QueuertError) -> None:
    """Process pools and Spark send them."""
    error.add_note("in job a")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_errors_are_pickled_in_one_way() -> None:
    """One with a way of its own would lose its notes, and what its users have added to it."""
    assert [cls.__name__ for cls in subclasses(errors.QueuertError) if "__reduce__" in vars(cls)] == []


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    assert "did you mean 'resize'?" in str(errors.UnknownJobTypeError("resise", ["resize", "publish"]))


@pytest.mark.parametrize(
    ("error", "kind", "code", "status"),
    [
        (errors.ConfigurationError("no"), "usage", 2, 422),
        (errors.InvalidCursorError("x"), "usage", 2, 400),
        (errors.PayloadError(job_type="resize", field="input", path="input.url", reason="missing"), "usage", 2, 422),
        (errors.ChainNotFoundError("a"), "not_found", 1, 404),
        (errors.ChainAlreadyClosedError("a", "failed"), "conflict", 1, 409),
        (errors.JobFailedError("a", "failed: boo"), "conflict", 1, 409),
        (errors.RightMissingError("permission denied"), "forbidden", 1, 403),
        (errors.StateUnavailableError("gone"), "unavailable", 3, 503),
        (errors.SchemaMissingError("none"), "unavailable", 3, 503),
        (errors.UnsuitableServerError("it evicts"), "unavailable", 3, 503),
        (errors.CapabilityMissingError("events", "use another"), "unsupported", 1, 501),
        (errors.WaitTimeoutError(["a"], 3.0), "timeout", 1, 504),
        (errors.EventLimitError("a", "1,000 events"), "conflict", 1, 409),
        (errors.ScheduleNotFoundError("nightly"), "not_found", 1, 404),
        (WebhookVerificationError("no signature"), "usage", 2, 401),
        (InvalidCallbackError("expired"), "usage", 2, 403),
        (errors.StateError("boo"), "failed", 1, 500),
        (
            errors.PayloadDecodeError(job_type="resize", field="input", path="input.url", reason="missing"),
            "failed",
            1,
            500,
        ),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_the_kind_of_an_error_says_its_exit_code_and_its_status(
    error: errors.QueuertError, kind: str, code: int, status: int
) -> None:
    assert (error.kind, exit_code(error), problem_of(error).body.status) == (kind, code, status)


def test_errors_that_callers_can_do_something_about_have_a_code_over_http() -> None:
    """Others are answered with 500 and without their text: mistakes of the program, and what is raised in handlers."""
    kinds = {*errors.ErrorKind} - {errors.ErrorKind.USAGE, errors.ErrorKind.FAILED}
    coded = tuple(cls for cls, _ in _CODES)
    without = {
        cls.__name__
        for cls in subclasses(errors.QueuertError)
        if cls.__module__ in ANSWERED and cls.kind in kinds and not issubclass(cls, coded)
    }
    # Bases, and a wait of a handler.
    assert without == {"ChainClosedError", "EventTimeoutError", "NotFoundError"}


ANSWERED = ("queuert.errors", "queuert.callbacks", "queuert.webhooks.errors")
"""The modules of errors that routes may raise. Those of Spark and of commands are imported by other tests alone."""


def subclasses(cls: type[errors.QueuertError]) -> Iterator[type[errors.QueuertError]]:
    for one in cls.__subclasses__():
        yield one
        yield from subclasses(one)
