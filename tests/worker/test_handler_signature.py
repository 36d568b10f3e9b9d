"""Functions that cannot be the handler of a job type are rejected where they are registered, and no others."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pydantic import BaseModel, PastDate, RootModel
from typing_extensions import TypedDict

from queuert import AsyncClient, Attempt, Continues, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.errors import DefinitionError, DuplicateJobTypeError, HandlerSignatureError, UnknownJobTypeError
from queuert.state.sqlite import SQLiteState

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


class Resize(BaseModel):
    width: int


class Narrow(Resize):
    height: int = 1


class Published(BaseModel):
    address: str


class Approved(BaseModel):
    by: str


class Shipped(BaseModel):
    at: str


class Loose(RootModel[str]):
    """Made of a text."""


class Row(TypedDict):
    a: int


publish = JobType("publish", input=Resize, output=Published)
relay = JobType("relay", input=Resize, continues_with=publish)
number = JobType("number", input=int, output=int)
loose = JobType("loose", input=PastDate, output=Loose)
row = JobType("row", input=Row, output=None)
either_way = JobType("either_way", input=Resize, output=Published, continues_with=publish)
approve = JobType("approve", input=Resize, output=Approved, continues_with="ship")
ship = JobType("ship", input=Resize, output=Shipped, continues_with=("ship", "approve"))
ask: JobType[Resize, Approved | Shipped] = JobType("ask", input=Resize, continues_with=("approve", "ask"))
job_types = JobTypes(publish, relay, number, loose, row, either_way, approve, ship, ask)


def no_parameter() -> Any: ...
def two(attempt: Any, other: Any) -> Any: ...
def keyword(attempt: Any, *, other: Any) -> Any: ...
def only_keyword(*, attempt: Any) -> Any: ...
def generator(attempt: Any) -> Iterator[int]:
    yield 1


async def async_generator(attempt: Any) -> AsyncIterator[int]:
    yield 1


class Handler:
    def __init__(self, attempt: Any) -> None: ...
    def __call__(self, attempt: Any) -> Any: ...
    def method(self, attempt: Attempt[Resize, Published]) -> Any: ...
    def swapped(self, attempt: Attempt[Published, Resize]) -> Any: ...


def swapped(attempt: Attempt[Published, Resize]) -> Any: ...
def of_another(attempt: Attempt[Published]) -> Continues: ...  # type: ignore[empty-body]
def takes_input(attempt: Resize) -> Any: ...
def takes_list(attempts: Sequence[Attempt[Resize, Published]]) -> Any: ...
def returns_input(attempt: Attempt[Resize, Published]) -> Resize: ...  # type: ignore[empty-body]
def returns_none(attempt: Attempt[Resize, Published]) -> None: ...
def returns_text(attempt: Attempt[Resize, Published]) -> str | int: ...  # type: ignore[empty-body]
def ends_otherwise(attempt: Attempt[Resize, Resize]) -> Any: ...
def outcome_of_input(attempt: Any) -> Outcome[Resize]: ...  # type: ignore[empty-body]
def continues_to_input(attempt: Any) -> Continues[Resize]: ...  # type: ignore[empty-body]
def returns_shipped(attempt: Any) -> Shipped: ...  # type: ignore[empty-body]
def outcome_of_approved(attempt: Attempt[Resize, Approved]) -> Outcome[Approved]: ...  # type: ignore[empty-body]
def continues_to_shipped(attempt: Attempt[Resize, Shipped]) -> Continues[Shipped]: ...  # type: ignore[empty-body]
def outcome_of_both(attempt: Any) -> Outcome[Approved | Shipped]: ...  # type: ignore[empty-body]
async def either(attempt: Any) -> Outcome[Resize | int]: ...  # type: ignore[empty-body]
def none_or_retry(attempt: Any) -> Outcome[None]: ...
def outcomes_of_input(attempts: Any) -> list[Outcome[Resize]]: ...  # type: ignore[empty-body]
async def returns_output(attempt: Attempt[Resize, Published]) -> Published: ...  # type: ignore[empty-body]
def takes_one(attempt: Attempt[Resize, Published]) -> Any: ...
def swapped_list(attempts: Sequence[Attempt[Published, Resize]]) -> Any: ...
def returns_inputs(attempts: Any) -> list[Resize]: ...  # type: ignore[empty-body]


def rejected(job_type: JobType[Any, Any], handler: Any, *, batch: bool = False) -> str:
    processors = Processors(job_types)
    register: Callable[[Any], Any] = (
        processors.handles_batch(job_type, size=2) if batch else processors.handles(job_type)
    )
    with pytest.raises(HandlerSignatureError) as raised:
        register(handler)
    assert len(processors) == 0
    return str(raised.value)


@pytest.mark.parametrize(
    ("job_type", "handler", "said"),
    [
        (publish, no_parameter, "must take one argument, the attempt, but its parameters are ()"),
        (publish, two, "must take one argument, the attempt, but its parameters are (attempt: 'Any', other: 'Any')"),
        (publish, keyword, "argument: 'other')"),
        (publish, only_keyword, "must take one argument"),
        (publish, functools.partial(two, 1, 2), "must take one argument"),
        (publish, Handler, "must be a function, but it is a class"),
        (publish, generator, "must return one outcome, but it is a generator"),
        (publish, async_generator, "must return one outcome, but it is a generator"),
        (publish, functools.partial(generator), "must return one outcome, but it is a generator"),
        (publish, swapped, "must take an Attempt[Resize, ...], the input of its job type, but it takes an Attempt[Pub"),
        (publish, Handler(1).swapped, "must take an Attempt[Resize, ...]"),
        (relay, of_another, "must take an Attempt[Resize, ...]"),
        (publish, takes_input, "must take an Attempt, but its parameter is annotated with Resize"),
        (publish, takes_list, "must take an Attempt, but its parameter is annotated with"),
        (publish, returns_input, "must return Published or Outcome[Published], but it is annotated to return Resize"),
        (
            publish,
            ends_otherwise,
            "must take an Attempt[..., Published], with the output of its job type, but it takes",
        ),
        (
            publish,
            outcome_of_input,
            "must return Published or Outcome[Published], but it is annotated to return Outcome[Resi",
        ),
        (publish, either, "but it is annotated to return Outcome[Resize | int]:"),
        (publish, none_or_retry, "but it is annotated to return Outcome[None]"),
        (publish, returns_none, "but it is annotated to return None"),
        (publish, returns_text, "but it is annotated to return str | int"),
        (relay, returns_output, "(it has no output, and continues with 'publish'), but it is annotated to return Publ"),
        (
            either_way,
            ends_otherwise,
            "must take an Attempt[..., Published], with the output of its chain, but it takes",
        ),
        (either_way, outcome_of_input, "must return Published or Outcome[Published], but"),
        (
            ask,
            outcome_of_input,
            "must return Continues[Approved | Shipped] or Outcome[Approved | Shipped] (it has no ou",
        ),
        (ask, continues_to_input, "but it is annotated to return Continues[Resize]: return an outcome"),
        (
            ask,
            returns_shipped,
            "must return Continues[Approved | Shipped] or Outcome[Approved | Shipped] (it has no ou",
        ),
        (
            ask,
            ends_otherwise,
            "must take an Attempt[..., Approved | Shipped], with the output of its chain, but it tak",
        ),
        (number, takes_one, "must take an Attempt[int, ...]"),
        (publish, 7, "must be a function, got 7"),
    ],
)
def test_what_cannot_be_a_handler_is_rejected(job_type: JobType[Any, Any], handler: Any, said: str) -> None:
    message = rejected(job_type, handler)
    assert said in message
    assert f"job type {job_type.name!r}" in message
    if handler != 7:
        assert f"the handler {__name__}." in message


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (takes_one, "must take a list of attempts"),
        (swapped_list, "must take an Attempt[Resize, ...]"),
        (returns_inputs, "must return Published or Outcome[Published]"),
        (outcomes_of_input, "but it is annotated to return Outcome[Resize]"),
        (two, "must take one argument, the list of attempts"),
    ],
)
def test_what_cannot_be_a_batched_handler_is_rejected(handler: Any, said: str) -> None:
    assert said in rejected(publish, handler, batch=True)


def right(attempt: Attempt[Resize, Published]) -> Outcome[Published]: ...  # type: ignore[empty-body]
def narrower(attempt: Attempt[Narrow, Published]) -> Published | None: ...
def vague(attempt: Attempt[Any, Any], *others: Any, **more: Any) -> Any: ...
def with_default(attempt: Any, other: int = 1) -> object: ...
def unresolved(attempt: Attempt[Missing, Published]) -> Missing: ...
def never(attempt: Attempt[Resize, Published]) -> NoReturn: ...  # type: ignore[empty-body]
def continued(attempt: Attempt[Resize, Published]) -> Outcome[Published]: ...  # type: ignore[empty-body]
def continues(attempt: Attempt[Resize]) -> Continues: ...  # type: ignore[empty-body]
def continues_to(attempt: Attempt[Resize]) -> Continues[Published]: ...  # type: ignore[empty-body]
def converted(attempt: Attempt[float, int]) -> str: ...  # type: ignore[empty-body]
def past(attempt: Attempt[date, Loose]) -> str: ...  # type: ignore[empty-body]
def typed_dict(attempt: Attempt[dict[str, int], None]) -> None: ...
def some_outcome(attempt: Attempt[Resize, Any]) -> Outcome[Any]: ...
def published_or_none(attempt: Any) -> Outcome[Published | None]: ...
def listed(attempts: Sequence[Attempt[Resize, Published]]) -> list[Outcome[Published]]: ...  # type: ignore[empty-body]


@functools.wraps(two)
def decorated(attempt: Any) -> Any:
    return two(attempt, 1)


@pytest.mark.parametrize(
    ("job_type", "handler"),
    [
        (publish, right), (publish, narrower), (publish, vague), (publish, with_default), (publish, unresolved),
        (publish, never), (relay, continued), (relay, continues), (relay, continues_to), (publish, continues),
        (publish, some_outcome), (ask, outcome_of_approved), (ask, continues_to_shipped), (ask, outcome_of_both),
        (publish, published_or_none),
        (number, converted), (loose, past), (row, typed_dict),
        (publish, functools.partial(two, other=1)), (publish, functools.partial(two, 1)), (publish, decorated),
        (publish, Handler(1)), (publish, Handler(1).method), (publish, lambda attempt: 1), (publish, print),
    ],
)  # fmt: skip
def test_what_may_be_a_handler_is_accepted(job_type: JobType[Any, Any], handler: Any) -> None:
    processors = Processors(job_types)
    assert processors.handles(job_type)(handler) is handler
    assert len(processors) == 1


def test_a_list_of_attempts_is_accepted_by_a_batch() -> None:
    Processors(job_types).handles_batch(publish, size=2)(listed)


def test_a_local_class_of_the_name_of_another_is_left_alone() -> None:
    class Published(BaseModel):
        other: int

    local: JobType[Any, None] = JobType("local", input=Published, output=None)

    def handler(attempt: Attempt[Published, None]) -> None: ...

    Processors(JobTypes(local)).handles(local)(handler)


def test_a_second_handler_names_both_functions_and_may_replace_the_first() -> None:
    processors = Processors(job_types)
    processors.handles(publish)(right)
    with pytest.raises(DuplicateJobTypeError, match=rf"{__name__}\.right already, got {__name__}\.vague"):
        processors.handles(publish)(vague)
    processors.handles(publish, replace=True)(vague)
    assert processors["publish"].handler is vague
    processors.handles_batch(publish, size=3, replace=True)(listed)
    replaced: Any = processors["publish"].handler
    assert (replaced, processors["publish"].batch_size) == (listed, 3)


def test_a_job_type_that_was_made_again_is_named_with_its_module() -> None:
    again = JobType("publish", input=Resize, output=Published)
    with pytest.raises(DuplicateJobTypeError, match=f"module '{__name__}' has made two of them"):
        Processors(job_types).handles(again)(right)
    again.module = "app.other"
    with pytest.raises(DuplicateJobTypeError, match=f"made in module 'app.other', the registered one in '{__name__}'"):
        Processors(job_types).handles(again)(right)
    with pytest.raises(DuplicateJobTypeError, match=f"from module '{__name__}' and from module 'app.other'"):
        JobTypes(job_types, again)
    with pytest.raises(UnknownJobTypeError, match="is not registered"):
        Processors(JobTypes(number)).handles(publish)(right)


def test_a_worker_whose_client_has_another_job_type_of_the_name_says_so(tmp_path: Path) -> None:
    again = JobType("publish", input=Resize, output=Published)
    client = AsyncClient(SQLiteState(tmp_path / "jobs.db"), JobTypes(again))
    processors = Processors(job_types)
    processors.handles(publish)(right)
    with pytest.raises(DuplicateJobTypeError, match="has made two of them"):
        InProcessWorker(client, processors)


def test_a_name_is_no_job_type() -> None:
    with pytest.raises(DefinitionError, match="job_type must be a JobType, got 'publish'"):
        Processors(job_types).handles("publish")  # type: ignore[arg-type]
