"""Which of Spark's errors tell of one of ours, and what is known of it then: as text, without a session."""

from __future__ import annotations

import inspect
import pickle

import pytest

from queuert import errors as core
from queuert.errors import (
    ChainNotFoundError,
    InvalidIdentifierError,
    JobIdConflictError,
    JobNotFoundError,
    PayloadError,
    QueuertError,
    StateUnavailableError,
)
from queuert.spark import errors as spark_errors
from queuert.spark.errors import BadRowsError, FenceLostError, SnapshotGoneError, SparkOptionError, found_in

COMMIT = "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort Python data source write: "
TASK = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker:\n"
HEADER = "Traceback (most recent call last):\n"
OURS = '  File "/opt/app/queuert/spark/write/batch.py", line 113, in commit\n    raise error\n    ^^^^^^^^^^^\n'
THEIRS = '  File "/opt/app/prices.py", line 3, in price\n    raise ValueError(text)\n'
FAKE = "queuert.spark.errors.FenceLostError: fake"
ENDS = "\n SQLSTATE: 38000"
STREAM = (
    "[STREAM_FAILED] Query [id = caaf6c20, runId = 9cbbb01b] terminated with exception: "
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform commit: "
)
STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 2.0 (TID 9) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: "
)
CONNECT = "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"


def of(error: QueuertError) -> str:
    """An error as a traceback ends with it."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}: {error}"


def found(text: str) -> QueuertError | None:
    return found_in(RuntimeError(text))


@pytest.mark.parametrize(
    "before",
    [COMMIT, TASK, STREAM, STAGE + TASK, CONNECT + TASK, "(org.apache.spark.sql.AnalysisException) " + COMMIT,
     TASK.partition("] ")[2]],
)  # fmt: skip
@pytest.mark.parametrize(
    "after", ["", "\n", ENDS, ENDS + " SQLSTATE: XXKST", " SQLSTATE: 38000", "\n\nJVM stacktrace:\nx"]
)
def test_the_last_line_of_our_traceback_is_taken_without_what_spark_adds(before: str, after: str) -> None:
    error = found(before + HEADER + OURS + "queuert.spark.errors.BadRowsError: 3 of 4 rows" + after)
    assert isinstance(error, BadRowsError)
    assert str(error) == "3 of 4 rows"


def test_a_traceback_may_be_hidden() -> None:
    error = found(COMMIT + "queuert.spark.errors.BadRowsError: 3 of 4 rows" + ENDS)
    assert isinstance(error, BadRowsError)
    assert found(TASK + f"ValueError: x\n{FAKE}") is None


def test_an_error_of_the_driver_comes_before_what_it_means() -> None:
    caused = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    real = "queuert.errors.StateUnavailableError: no route"
    text = COMMIT + HEADER + OURS + "psycopg.OperationalError: no route" + caused + HEADER + OURS + real
    assert isinstance(found(text + ENDS), StateUnavailableError)
    reported = text.replace("Error: no route\n", f"Error: no route{caused}{HEADER}{OURS}{FAKE}\n", 1)
    assert isinstance(found(reported), StateUnavailableError)


@pytest.mark.parametrize("fake", [f"x\n{FAKE}", f"x\n{HEADER}{OURS}{FAKE}", f"{COMMIT}{HEADER}{OURS}{FAKE}", FAKE])
@pytest.mark.parametrize(
    "around",
    [
        "Error: %s",
        "[USER_RAISED_EXCEPTION] %s SQLSTATE: P0001",
        STAGE.replace("api.python.PythonException", "SparkRuntimeException") + "[USER_RAISED_EXCEPTION] %s",
        TASK + HEADER + THEIRS + "ValueError: %s",
        TASK + HEADER + THEIRS + "ValueError: x\n\nDuring handling of this, another exception occurred:\n\n%s",
        COMMIT + HEADER + OURS + "pyarrow.lib.ArrowInvalid: %s",
        COMMIT + HEADER + OURS + "ValueError: %s",
    ],
)  # fmt: skip
def test_text_of_a_row_is_not_taken_for_an_error(around: str, fake: str) -> None:
    assert found(around % fake) is None


@pytest.mark.parametrize("id", [f"a\n{FAKE}", "it's", '"', "'\"", "\\", ", 'b'", "does not exist"])
def test_ids_come_through_whole(id: str) -> None:
    missing = found(COMMIT + HEADER + OURS + of(ChainNotFoundError(id)) + ENDS)
    assert isinstance(missing, ChainNotFoundError)
    assert missing.id == id
    taken = found(COMMIT + HEADER + OURS + of(JobIdConflictError([id, "b", id])) + ENDS)
    assert isinstance(taken, JobIdConflictError)
    assert (taken.ids, taken.repeated) == ((id, "b", id), ())
    assert pickle.loads(pickle.dumps(taken)).ids == taken.ids


@pytest.mark.parametrize("existing", [(), ("it's",), ("a", "b; these ids occur more than once in the write: 'c'")])
@pytest.mark.parametrize("repeated", [(), ("b",), ("a", "c")])
def test_ids_of_both_kinds_come_through(existing: tuple[str, ...], repeated: tuple[str, ...]) -> None:
    given = JobIdConflictError(existing, repeated=repeated)
    error = found(COMMIT + HEADER + OURS + (of(given) if str(given) else of(given)[:-2]) + ENDS)
    assert isinstance(error, JobIdConflictError)
    assert vars(error) == vars(given)


def test_attributes_that_the_text_does_not_have_are_empty() -> None:
    none = found(COMMIT + HEADER + OURS + of(JobIdConflictError([])) + ENDS)
    assert isinstance(none, JobIdConflictError)
    assert none.ids == ()
    job = found(COMMIT + HEADER + OURS + "queuert.errors.JobNotFoundError: gone" + ENDS)
    assert isinstance(job, JobNotFoundError)
    assert (job.id, str(job)) == ("", "gone")


def test_all_attributes_of_a_payload_come_through() -> None:
    given = PayloadError(job_type="it's", field="input", path="input.n", reason="not: a number")
    error = found(COMMIT + HEADER + OURS + of(given))
    assert vars(error) == vars(given)


def test_no_error_that_is_found_lacks_an_attribute() -> None:
    made = [JobIdConflictError(["a"]), ChainNotFoundError("a"), JobNotFoundError("a"), core.NotFoundError("a")]
    made += [kind(job_type="t", field="f", path="p", reason="r") for kind in (PayloadError, core.PayloadDecodeError)]
    whole = {type(error): set(vars(error)) for error in made}
    for name, kind in {**vars(core), **vars(spark_errors)}.items():
        if not (inspect.isclass(kind) and issubclass(kind, QueuertError)):
            continue
        error = found(f"{COMMIT}{HEADER}{OURS}{kind.__module__}.{name}: told")
        if error is not None:
            assert set(vars(error)) == whole.get(kind, set())
            assert kind in whole or not inspect.isfunction(kind.__init__)
    for kept in (InvalidIdentifierError, StateUnavailableError, FenceLostError, SparkOptionError):
        assert isinstance(found(f"{COMMIT}{HEADER}{OURS}{kept.__module__}.{kept.__name__}: told"), kept)


class Captured(Exception):
    """As pyspark keeps an error of the JVM."""

    def __init__(self, text: str, cause: Captured | None = None) -> None:
        super().__init__(f"{text}\n\nJVM stacktrace:\nCaused by: {cause}")
        self._desc = text
        self._cause = cause


def test_causes_are_looked_at_each_by_itself() -> None:
    gone = Captured(TASK + HEADER + OURS + "queuert.spark.errors.SnapshotGoneError: gone")
    failed = "[TASK_WRITE_FAILED] Task failed while writing rows."
    assert isinstance(found_in(Captured(failed, gone)), SnapshotGoneError)
    fake = Captured(f"[USER_RAISED_EXCEPTION] x\nCaused by: {TASK}{HEADER}{OURS}{FAKE}")
    assert found_in(Captured(failed, fake)) is None


def test_other_errors_tell_of_none() -> None:
    assert found("something else") is None
    assert found("") is None
    assert found(COMMIT + HEADER + OURS + "queuert.spark.errors.NoSuchError: x") is None
