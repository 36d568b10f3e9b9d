"""A union of which one member is always read back as another one is reported where the job type is made."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from queuert import JobType
from queuert.errors import DefinitionWarning, PayloadError

T = TypeVar("T")


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


class Old(BaseModel):
    name: str
    age: int = 0


class Tall(BaseModel):
    name: str
    height: int


class Start(BaseModel):
    pass


class Stop(BaseModel):
    pass


@dataclass
class Point:
    x: int


@pydantic_dataclass
class Spot:
    x: int


class Puppy(Dog):
    pass


class Renamed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(alias="petName")


class Home(BaseModel):
    pets: list[Cat | Dog]
    by_name: dict[str, tuple[int, Dog | Cat | None]] = {}
    next: Home | None = None


class Box(BaseModel, Generic[T]):
    item: T


def warned(annotation: Any, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        JobType[Any, Any]("walk", input=annotation, output=None, **more)
    assert all(one.category is DefinitionWarning and one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


def test_the_warning_names_the_path_and_what_to_add() -> None:
    with pytest.warns(DefinitionWarning) as caught:
        JobType("walk", input=list[Cat | Dog], output=None)
    [message] = [str(one.message) for one in caught]
    assert message == (
        "input[] of job type 'walk': an instance of Dog would be read back as one of Cat, and is refused: give each "
        "member of the union a field such as kind: Literal['dog'] = 'dog', and the union a discriminator: "
        "Annotated[Cat | Dog, Field(discriminator='kind')]"
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("annotation", "paths", "taken_for", "value"),
    [
        (Cat | Dog, ["input"], Cat, Dog(name="a")),
        (Dog | Puppy, ["input"], Dog, Puppy(name="a")),
        (Old | Cat, ["input"], Old, Cat(name="a")),
        (Start | Stop, ["input"], Start, Stop()),
        (Point | Spot, ["input"], Point, Spot(1)),
        (Renamed | Cat | None, ["input"], Renamed, Cat(name="a")),
        (Box[Cat] | Box[Dog] | Cat | Dog, ["input"], Cat, Dog(name="a")),
        (Annotated[Cat | Old, Field(union_mode="left_to_right")], ["input"], Cat, Old(name="a")),
        (Home, ["input.pets[]", "input.by_name[][1]"], Cat, Home(pets=[Dog(name="a")])),
    ],
)
def test_members_that_are_alike_are_reported(annotation: Any, paths: list[str], taken_for: type, value: Any) -> None:
    messages = warned(annotation)
    assert [message.partition(" ")[0] for message in messages] == paths
    assert f"read back as one of {taken_for.__name__}, " in messages[0]
    with warnings.catch_warnings(action="ignore"):
        job_type = JobType[Any, Any]("walk", input=annotation, output=None)
    with pytest.raises(PayloadError, match="discriminator"):
        job_type.encode_input(value)


def test_an_output_is_looked_at_too() -> None:
    with pytest.warns(DefinitionWarning, match=r"^output of .* Dog would be read back as one of Cat"):
        JobType("walk", input=None, output=Cat | Dog)


class LiteralCat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class LiteralDog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Numbered(BaseModel):
    name: int


class Checked(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        return value


class Strict(BaseModel):
    model_config = ConfigDict(str_max_length=3)
    name: str


class Left(TypedDict):
    name: str


class Right(TypedDict):
    name: str


def kind_of(value: Any) -> str:
    return "cat" if isinstance(value, Cat) else "dog"


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (LiteralCat | LiteralDog, [LiteralCat(name="a"), LiteralDog(name="a")]),
        (Annotated[LiteralCat | LiteralDog, Field(discriminator="kind")], [LiteralCat(name="a"), LiteralDog(name="a")]),
        (Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(kind_of)], []),
        (Cat | Old, [Cat(name="a"), Old(name="a")]),
        (Cat | Tall, [Cat(name="a"), Tall(name="a", height=1)]),
        (Tall | Cat, [Cat(name="a"), Tall(name="a", height=1)]),
        (Cat | Numbered, [Cat(name="a"), Numbered(name=1)]),
        (Checked | Cat, []),
        (Strict | Cat, [Cat(name="longer")]),
        (Left | Right, [{"name": "a"}]),
        (Cat | Point | None, [Cat(name="a"), Point(1), None]),
        (Cat | dict[str, Any], [Cat(name="a"), {"b": 1}]),
        (Box[int] | Box[str], [Box[int](item=1), Box[str](item="1")]),
        (int | str | list[Cat], [1, "1", [Cat(name="a")]]),
    ],
)
def test_members_that_differ_are_not_reported(annotation: Any, values: list[Any]) -> None:
    assert warned(annotation) == []
    job_type = JobType[Any, Any]("walk", input=annotation, output=None)
    for value in values:
        assert job_type.decode_input(job_type.encode_input(value)) == value


def test_another_process_that_unpickles_the_job_type_does_not_warn_again() -> None:
    with warnings.catch_warnings(action="ignore"):
        job_type = JobType("walk", input=Cat | Dog, output=None)
    assert pickle.loads(pickle.dumps(job_type)).name == "walk"
