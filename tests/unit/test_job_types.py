"""Job types and their registry, at run time; ``tests/typing`` has what type checkers make of them."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from queuert import Attempt, Processors
from queuert.errors import (
    ConfigurationError,
    DefinitionError,
    DuplicateJobTypeError,
    PayloadDecodeError,
    PayloadError,
    UnknownJobTypeError,
)
from queuert.job_types import JobType, JobTypes
from queuert.limits import TypeTraits
from queuert.payloads import PayloadLimits
from queuert.policies import Retention


class Resize(BaseModel):
    url: str
    width: int


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


@dataclass
class Point:
    x: int


class Options(TypedDict):
    depth: int


publish = JobType("publish", input=Thumbnail, output=Published)
resize = JobType("resize", input=Resize, continues_with=publish)


def test_a_job_type_encodes_and_decodes_its_input_and_output() -> None:
    text = resize.encode_input(Resize(url="u", width=3))
    assert text == '{"url":"u","width":3}'
    assert resize.decode_input(text) == Resize(url="u", width=3)
    assert publish.decode_output(publish.encode_output(Published(address="a"))) == Published(address="a")


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (None, None, "null"),
        (int, 3, "3"),
        (list[str], ["a"], '["a"]'),
        (Point, Point(1), '{"x":1}'),
        (Options, {"depth": 1}, '{"depth":1}'),
        (int | None, None, "null"),
    ],
)
def test_any_type_with_a_json_form_will_do(annotation: Any, value: object, text: str) -> None:
    job_type = JobType("any", input=annotation, output=annotation)
    assert job_type.encode_input(value) == job_type.encode_output(value) == text
    assert job_type.decode_input(text) == job_type.decode_output(text) == value
    assert job_type.can_complete


def test_errors_say_which_job_type_and_which_side() -> None:
    with pytest.raises(PayloadError) as written:
        publish.encode_output({"address": 3})
    error = written.value
    assert (error.job_type, error.field, error.path) == ("publish", "output", "output.address")
    with pytest.raises(PayloadDecodeError) as read:
        resize.decode_input('{"url": "u"}')
    assert (read.value.job_type, read.value.field, read.value.path) == ("resize", "input", "input.width")


def test_a_job_type_without_an_output_cannot_complete() -> None:
    assert (publish.can_complete, publish.continuations) == (True, ())
    assert (resize.can_complete, resize.continuations) == (False, ("publish",))
    with pytest.raises(PayloadError, match="continues with publish"):
        resize.encode_output(Published(address="a"))
    with pytest.raises(PayloadDecodeError, match="continues with publish"):
        resize.decode_output("{}")


def test_none_is_an_output_like_any_other() -> None:
    tick = JobType("tick", input=None, output=None)
    assert tick.can_complete
    assert tick.encode_output(None) == "null"


def test_continuations_are_objects_or_names_or_both() -> None:
    poll = JobType("poll", input=Point, output=Point, continues_with="poll")
    mixed = JobType("mixed", input=Point, output=Point, continues_with=("poll", publish, "mixed"))
    listed: JobType[Point, Point | Published] = JobType(
        "listed", input=Point, output=Point, continues_with=[publish, poll]
    )
    assert poll.continuations == ("poll",)
    assert mixed.continuations == ("poll", "publish", "mixed")
    assert listed.continuations == ("publish", "poll")
    assert set(JobTypes(poll, mixed, listed, publish)) == {poll, mixed, listed, publish}


def test_a_job_type_has_limits_of_its_own() -> None:
    small = JobType("small", input=str, output=str, limits=PayloadLimits(max_bytes=5))
    assert small.encode_input("abc") == '"abc"'
    with pytest.raises(PayloadError, match="got 6"):
        small.encode_input("abcd")
    with pytest.raises(PayloadError, match="got 6"):
        small.encode_output("abcd")


@pytest.mark.parametrize("name", ["a", "_", "images.resize", "a:b/c-d_e", "A1", "x" * 128])
def test_a_good_name(name: str) -> None:
    assert JobType(name, input=int, output=int).name == name


@pytest.mark.parametrize(
    "name", ["", "1a", "-a", "a b", "a\n", "a\x00", "é", "a'b", "x" * 129, "x" * 100_000, ".a", None, 3, b"a"]
)
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="job type name") as caught:
        JobType(name, input=int, output=int)
    assert len(str(caught.value)) < 500
    with pytest.raises(DefinitionError):
        JobType("a", input=int, output=int, continues_with=(name,))


def test_names_of_the_library_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"must not begin with 'queuert\.', got 'queuert\.bulk_operation'"):
        JobType("queuert.bulk_operation", input=int, output=int)
    assert JobType("queuert_like", input=int, output=int).name == "queuert_like"


def test_neither_output_nor_continuation_is_refused() -> None:
    untyped: Any = JobType
    with pytest.raises(DefinitionError, match="must have an output or a continuation"):
        untyped("stuck", input=int)
    with pytest.raises(DefinitionError, match="must have an output or a continuation"):
        untyped("stuck", input=int, continues_with=())


def test_a_continuation_named_twice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'publish' twice"):
        JobType("a", input=int, output=int, continues_with=(publish, "publish"))


def test_a_type_without_a_json_form_is_refused() -> None:
    with pytest.raises(DefinitionError, match="output of job type 'a'"):
        JobType("a", input=int, output=type("Plain", (), {}))


def test_a_registry_is_looked_up_by_name() -> None:
    job_types = JobTypes(resize, publish)
    assert job_types["resize"] is resize
    assert job_types.get("publish") is publish
    assert job_types.get("nothing") is None
    assert list(job_types) == [resize, publish]
    assert job_types.names == ("resize", "publish")
    assert len(job_types) == 2
    assert "resize" in job_types
    assert resize in job_types
    assert "nothing" not in job_types
    assert JobType("resize", input=int, output=int) not in job_types


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(UnknownJobTypeError, match="did you mean 'resize'") as caught:
        JobTypes(resize, publish)["resise"]
    assert caught.value.known == ("publish", "resize")


def test_registries_merge() -> None:
    mail = JobType("mail", input=None, output=None)
    assert JobTypes(JobTypes(resize, publish), mail).names == ("resize", "publish", "mail")
    assert JobTypes().names == ()


@pytest.mark.parametrize(
    "members",
    [(publish, publish), (JobTypes(publish), publish), (publish, JobType("publish", input=int, output=int))],
)
def test_duplicates_are_refused(members: tuple[Any, ...]) -> None:
    with pytest.raises(DuplicateJobTypeError, match="'publish'"):
        JobTypes(*members)


def test_a_continuation_must_be_registered() -> None:
    with pytest.raises(DefinitionError, match="'resize' continues with 'publish', which must be registered"):
        JobTypes(resize)
    with pytest.raises(DefinitionError, match="continues with 'nowhere'"):
        JobTypes(JobType("lost", input=int, output=int, continues_with=("nowhere",)))


def test_a_continuation_must_be_the_registered_object() -> None:
    with pytest.raises(DefinitionError, match="another job type is registered"):
        JobTypes(resize, JobType("publish", input=int, output=int))


def test_only_job_types_are_registered() -> None:
    other: Any = "resize"
    with pytest.raises(DefinitionError, match="got str"):
        JobTypes(other)


def test_the_output_of_a_chain_is_read_by_the_type_of_its_last_job() -> None:
    job_types = JobTypes(resize, publish)
    assert job_types.decode_output("publish", '{"address":"a"}') == Published(address="a")
    assert job_types.output_decoder("publish")(b'{"address":"a"}') == Published(address="a")
    with pytest.raises(UnknownJobTypeError):
        job_types.decode_output("gone", "{}")
    with pytest.raises(UnknownJobTypeError):
        job_types.output_decoder("gone")


def test_job_types_travel_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(JobTypes(resize, publish)))
    assert again.names == ("resize", "publish")
    assert again["resize"].continuations == ("publish",)
    assert again["resize"].encode_input(Resize(url="u", width=1)) == '{"url":"u","width":1}'
    assert not again["resize"].can_complete


def test_a_client_completes_jobs_of_a_type_that_says_so() -> None:
    approve = JobType("approve", input=int, output=str, completed_by="client", overdue_after=timedelta(days=3))
    assert (approve.completed_by, approve.overdue_after) == ("client", 259_200.0)
    assert (resize.completed_by, resize.overdue_after) == ("worker", None)
    assert JobType("answer", input=int, output=str, completed_by="client").overdue_after is None
    assert approve.retention == Retention()
    kept = JobType("approve", input=int, output=str, completed_by="client", retention=Retention.forever())
    again = pickle.loads(pickle.dumps(approve))
    assert (again.completed_by, again.overdue_after) == ("client", 259_200.0)
    assert pickle.loads(pickle.dumps(kept)).retention == Retention.forever()


def test_traits_are_what_programs_need_that_do_not_know_the_type() -> None:
    assert resize.traits is None
    child = JobType("child", input=int, output=int, closes_with_parent=True)
    assert pickle.loads(pickle.dumps(child)).traits == TypeTraits("child", closes_with_parent=True)
    approve = JobType(
        "approve", input=int, output=int, completed_by="client", overdue_after=60, closes_with_parent=True
    )
    assert approve.traits == TypeTraits("approve", True, 60.0, True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"completed_by": "user"}, DefinitionError, "must be 'worker' or 'client', got 'user'"),
        ({"overdue_after": 60}, DefinitionError, "needs completed_by='client', got 60"),
        ({"retention": Retention()}, DefinitionError, "needs completed_by='client'"),
        ({"closes_with_parent": 1}, DefinitionError, "must be a bool, got 1"),
        ({"completed_by": "client", "retention": 14}, DefinitionError, "must be a Retention, got 14"),
        ({"completed_by": "client", "overdue_after": 0}, ConfigurationError, "above 0"),
        ({"completed_by": "client", "overdue_after": float("nan")}, ConfigurationError, "got nan"),
        ({"completed_by": "client", "overdue_after": True}, ConfigurationError, "got True"),
    ],
)
def test_what_is_said_of_clients_is_checked(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        JobType("approve", input=int, output=str, **options)


def test_jobs_that_a_client_completes_have_no_handler() -> None:
    approve = JobType("approve", input=int, output=str, completed_by="client")
    processors = Processors(JobTypes(approve))

    def handle(attempt: Attempt[int, str]) -> str:
        raise NotImplementedError

    with pytest.raises(DefinitionError, match="'approve', whose jobs a client completes: remove the handler"):
        processors.handles(approve)(handle)
