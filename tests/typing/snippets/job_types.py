"""What is inferred of job types, and what is refused."""

from typing import Any, Literal, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from queuert.job_types import JobType, JobTypes


class Resize(BaseModel):
    url: str


class ResizeWell(Resize):
    quality: int


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


class Rejected(BaseModel):
    reason: str


class Archived(BaseModel):
    shelf: int


class Options(TypedDict):
    depth: int


# Input and output
publish = JobType("publish", input=Thumbnail, output=Published)
correct = JobType("correct", input=Thumbnail, output=Published)
reject = JobType("reject", input=Thumbnail, output=Rejected)
archive = JobType("archive", input=int, output=Archived)
expire = JobType("expire", input=int, output=int)
assert_type(publish, JobType[Thumbnail, Published])
assert_type(JobType("tick", input=None, output=None), JobType[None, None])
assert_type(JobType("sum", input=list[int], output=int), JobType[list[int], int])
assert_type(JobType("either", input=int | str, output=Literal["x"]), JobType[int | str, Literal["x"]])
assert_type(JobType("options", input=Options, output=dict[str, int]), JobType[Options, dict[str, int]])

# The result comes through continuations
resize = JobType("resize", input=Resize, continues_with=publish)
assert_type(resize, JobType[Resize, Published])
assert_type(JobType("upload", input=str, continues_with=resize), JobType[str, Published])
assert_type(JobType("one", input=str, continues_with=(publish,)), JobType[str, Published])
assert_type(JobType("list", input=str, continues_with=[publish, correct]), JobType[str, Published])

# Branches give unions
review = JobType("review", input=Thumbnail, continues_with=(publish, reject))
assert_type(review, JobType[Thumbnail, Published | Rejected])
triage = JobType("triage", input=Thumbnail, continues_with=(publish, reject, archive))
assert_type(triage, JobType[Thumbnail, Published | Rejected | Archived])
sort = JobType("sort", input=Thumbnail, continues_with=(publish, reject, archive, expire))
assert_type(sort, JobType[Thumbnail, Published | Rejected | Archived | int])
assert_type(JobType("start", input=str, continues_with=review), JobType[str, Published | Rejected])
many: JobType[str, Published | Rejected] = JobType("many", input=str, continues_with=[publish, reject])

# An output of its own joins them
assert_type(JobType("a", input=str, output=int, continues_with=publish), JobType[str, int | Published])
assert_type(
    JobType("b", input=str, output=int, continues_with=(publish, reject)), JobType[str, int | Published | Rejected]
)
assert_type(
    JobType("c", input=str, output=int, continues_with=(publish, reject, archive)),
    JobType[str, int | Published | Rejected | Archived],
)

# Names tell nothing: the rest does, or an annotation
assert_type(JobType("poll", input=str, output=int, continues_with="poll"), JobType[str, int])
assert_type(JobType("poll", input=str, output=int, continues_with=("poll", "other")), JobType[str, int])
assert_type(JobType("poll", input=str, output=int, continues_with=("poll", publish)), JobType[str, int | Published])
assert_type(JobType("poll", input=str, continues_with=("poll", publish)), JobType[str, Published])
named: JobType[str, int] = JobType("named", input=str, continues_with="poll")

# Variance: who takes more and gives less will do
takes_less: JobType[ResizeWell, Published] = resize
gives_more: JobType[Resize, Published | Rejected] = resize
whatever: JobType[Any, object] = resize
registry = JobTypes(resize, publish, JobTypes(reject))
assert_type(registry["resize"], JobType[Any, Any])
assert_type(registry.get("resize"), JobType[Any, Any] | None)

resize.encode_input(ResizeWell(url="u", quality=3))
assert_type(resize.encode_input(Resize(url="u")), str)

# Wrong programs
resize.encode_input(Thumbnail(key="k"))  # expect: error
resize.encode_input({"url": "u"})  # expect: error
needs_more: JobType[BaseModel, Published] = resize  # expect: error
other_result: JobType[Resize, Rejected] = resize  # expect: error
one_of_two: JobType[Thumbnail, Published] = review  # expect: error
through: JobType[Resize, Rejected] = JobType("through", input=Resize, continues_with=publish)  # expect: error
JobType("neither", input=Resize)  # expect: error
JobType("no input", output=Published)  # expect: error
JobType(3, input=Resize, output=Published)  # expect: error
JobType("value", input=3, output=Published)  # expect: error
JobType("instance", input=Resize, output=Published(address="a"))  # expect: error
JobType("model", input=Resize, continues_with=Published)  # expect: error
JobType("positional", Resize, Published)  # expect: error
JobTypes("resize")  # expect: error
registry[resize]  # expect: error
