"""The text of a traceback: what the standard library says, from the handler on, made once for each place."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from queuert import Attempt, RetryPolicy
from queuert.worker import tracebacks
from queuert.worker.finishes import check_continuation
from queuert.worker.tracebacks import text_of
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT

MOST = 1_000_000


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it does not raise")


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Gets longer with each call of a function of the standard library."""
    calls: list[int] = []
    function = getattr(traceback, name)

    def counting(*given: Any) -> Any:
        calls.append(1)
        return function(*given)

    monkeypatch.setattr(traceback, name, counting)
    return calls


def plain() -> None:
    raise ValueError("no\n\tway")


def from_a_cause() -> None:
    try:
        plain()
    except ValueError as error:
        raise KeyError("there") from error


def while_handling() -> None:
    try:
        from_a_cause()
    except KeyError:
        plain()


def without_its_context() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError("there") from None


def with_notes() -> None:
    error = ValueError("no")
    error.add_note("a note\nof two lines")
    raise error


def deep(left: int = 500) -> None:
    if left:
        deep(left - 1)
    plain()


def with_little_repeated() -> None:
    deep(4)


def with_source() -> None:
    exec("\n  1 +\n", {})


def of_generated_code() -> None:
    exec("def inner():\n    1 / 0\ninner()", {})


def grouped() -> None:
    raise BaseExceptionGroup("several", [raised(plain), raised(from_a_cause)])


def from_a_group() -> None:
    try:
        grouped()
    except BaseExceptionGroup as group:
        raise KeyError("there") from group


def in_a_circle() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one
    raise one


def without_words() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    raise Mute


SHAPES = [
    plain, from_a_cause, while_handling, without_its_context, with_notes, deep, with_little_repeated, with_source,
    of_generated_code, grouped, from_a_group, in_a_circle, without_words, sum,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: one.__name__)
def test_it_says_what_the_standard_library_says(shape: Callable[[], object]) -> None:
    """Twice, the second time from what is known."""
    error = raised(shape)
    expected = "".join(traceback.format_exception(error))
    assert text_of(error, MOST) == expected
    assert text_of(error, MOST) == expected


def test_an_error_that_was_not_raised_has_no_frames() -> None:
    assert text_of(ValueError("no"), MOST) == "ValueError: no\n"


@pytest.mark.parametrize("most", [60, 200, 1_000])
@pytest.mark.parametrize("shape", [plain, from_a_cause, deep, from_a_group], ids=lambda one: one.__name__)
def test_the_end_is_kept(shape: Callable[[], object], most: int) -> None:
    error = raised(shape)
    whole = "".join(traceback.format_exception(error))
    text = text_of(error, most)
    assert len(text) == min(most, len(whole))
    assert text == whole or (text.startswith("... ") and whole.endswith(text[4:]))


def test_a_long_chain_is_not_followed_to_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be cut off is not made."""

    def tried_again_and_again() -> None:
        error: ValueError | None = None
        for _ in range(1_000):
            try:
                raise ValueError("no") from error
            except ValueError as another:
                error = another
        assert error is not None
        raise error

    made = counted(monkeypatch, "format_exception_only")
    assert len(text_of(raised(tried_again_and_again), 2_000)) == 2_000
    assert len(made) < 30


# --- made once --------------------------------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Says how often the source of a frame is read; nothing is known at first."""
    monkeypatch.setattr(tracebacks, "_locations", {})
    return counted(monkeypatch, "format_tb")


def test_a_place_is_read_once(read: list[int]) -> None:
    for _ in range(100):
        text_of(raised(from_a_cause), MOST)
    # The call of this module's helper, where it raises, and the two places on the way of its cause.
    assert len(read) == 4


def test_lines_that_differ_are_reported_apart(read: list[int]) -> None:
    """Also where code is made anew at the place in memory of other code: that is kept as long as its text."""
    for word in range(100):
        scope: dict[str, Any] = {}
        exec(f"def function():\n    raise ValueError({word})", scope)
        error = raised(scope["function"])
        del scope
        assert text_of(error, MOST) == "".join(traceback.format_exception(error))
    assert len(read) >= 100


def test_not_everything_is_kept(read: list[int]) -> None:
    for word in range(tracebacks._MAX_LOCATIONS + 10):
        scope: dict[str, Any] = {}
        exec(f"def function():\n    raise ValueError({word})", scope)
        text_of(raised(scope["function"]), MOST)
        assert len(tracebacks._locations) <= tracebacks._MAX_LOCATIONS


# --- from the handler on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_it_begins_at_the_handler(harness: PostgresHarness, mode: str) -> None:
    def in_thread(attempt: Attempt[int, int]) -> int:
        plain()
        return 1

    async def in_loop(attempt: Attempt[int, int]) -> int:
        plain()
        return 1

    harness.handles(number, in_loop if mode == "coroutine" else in_thread, retry=RetryPolicy(max_attempts=1))
    await harness.worker().start()
    chain = await harness.client.start_chain(number, 1)
    error = (await chain.wait(WAIT)).error
    assert error is not None
    head, first, *rest = str(error.traceback).splitlines()
    assert head == "Traceback (most recent call last):"
    assert first.startswith(f'  File "{__file__}", line ')
    assert first.endswith("in in_loop" if mode == "coroutine" else "in in_thread")
    assert rest[-2:] == ["ValueError: no", "\tway"]


def test_what_has_no_other_frames_keeps_those_of_the_worker() -> None:
    error = raised(lambda: check_continuation(number, "nowhere"))
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    error.__traceback__ = trace
    assert "check_continuation" in text_of(error, MOST)
