"""Job types: a name with typed input and output, and the job types that may come next.

They hold no handler, so that a producer (a web process, a Spark driver) imports them without importing the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from queuert.blocker_types import BlockerTypes, declared_blockers
from queuert.codecs import PLAIN, Codec, PayloadFormat
from queuert.codecs.payloads import payload_codec
from queuert.errors import DefinitionError, DuplicateJobTypeError, PayloadDecodeError, PayloadError, UnknownJobTypeError
from queuert.payloads import DEFAULT_LIMITS, PayloadLimits
from queuert.type_names import checked_type_name

if TYPE_CHECKING:
    from typing_extensions import TypeForm

I = TypeVar("I", contravariant=True)  # noqa: E741
R = TypeVar("R", covariant=True)
_N = TypeVar("_N")
_O = TypeVar("_O")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


class _Nothing(Enum):
    NONE = "no output of its own"


BlockerDeclaration: TypeAlias = "tuple[JobType[Any, Any] | str | EllipsisType, ...]"
"""The job types of blockers, in order, as objects or names; ``...`` at the end repeats the last."""


class _Options(TypedDict, total=False):
    """What does not bear on the type of the result."""

    limits: PayloadLimits
    blockers: BlockerDeclaration | None
    format: PayloadFormat | None


class JobType(Generic[I, R]):
    """A kind of job: its name, its input, and what its chain ends with.

    ``JobType[I, R]`` takes an ``I``, and the chain that it starts ends with an ``R``: the job's own ``output`` if it
    may complete the chain, or the result of any job type that it may continue with. Both are inferred::

        publish = JobType("publish", input=Thumbnail, output=Published)
        resize = JobType("resize", input=Resize, continues_with=publish)    # JobType[Resize, Published]

    Continuations are given as objects, as names (for loops and for types declared later), or as a tuple of both.
    Names tell a type checker nothing: when they are all there is, annotate the variable. So too where mypy cannot
    keep different job types apart: in a list of them, and in a tuple longer than four (three with an ``output``)::

        poll = JobType("poll", input=Poll, output=Done, continues_with="poll")
        fetch: JobType[Fetch, Done] = JobType("fetch", input=Fetch, continues_with="poll")

    ``blockers`` declares what chains a job of this type waits for, by the job types that they begin with: some fixed
    ones, any number of one type, or both. What does not fit is refused; without a declaration anything goes::

        page = JobType("page", input=int, output=str)
        header = JobType("header", input=None, output=str)
        book = JobType("book", input=str, output=str, blockers=(header, page, ...))

    Inputs and outputs outlive a deployment: the version that reads one may be older or newer than its writer, so let
    new fields have defaults.

    Args:
        name: at most 128 characters, of letters, digits and ``_ . : / -``; the first is a letter or ``_``.
        input: the type of the input: anything that a pydantic ``TypeAdapter`` takes, such as a model, a dataclass, a
            ``TypedDict`` (that of ``typing_extensions`` before Python 3.12), ``int``, ``list[str]`` or ``None``.
        output: the type of the output, if a job of this type may complete its chain.
        continues_with: the job types that may come next.
        limits: what inputs and outputs may measure.
        blockers: a tuple of job types, or of their names, which need not be registered; ``...`` repeats the last.
        format: how inputs and outputs are stored, see :mod:`queuert.codecs`; by default as plain JSON.

    Attributes:
        name: as given.
        continuations: the names of the job types that may come next, in order.
        can_complete: whether a job of this type may complete its chain, that is, has an output.
        blockers: the job types of the chains that a job of this type waits for; None where any will do.
        format: how inputs and outputs are stored.

    Raises:
        DefinitionError: the name is not allowed, a type has no JSON form, there is neither output nor continuation, or
            the blockers are no such tuple.
    """

    __slots__ = (
        "_input", "_kept", "_linked", "_output", "_spec", "blockers", "can_complete", "continuations", "format", "name"
    )  # fmt: skip

    @overload
    def __init__(
        self,
        name: str,
        *,
        input: TypeForm[I],
        output: TypeForm[R],
        continues_with: str | tuple[str, ...] = (),
        **options: Unpack[_Options],
    ) -> None: ...
    # A type checker joins the results in a list to their common base. Tuples of a known length keep them apart.
    @overload
    def __init__(
        self: JobType[_N, _A | _B],
        name: str,
        *,
        input: TypeForm[_N],
        continues_with: tuple[JobType[Any, _A], JobType[Any, _B]],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: JobType[_N, _A | _B | _C],
        name: str,
        *,
        input: TypeForm[_N],
        continues_with: tuple[JobType[Any, _A], JobType[Any, _B], JobType[Any, _C]],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: JobType[_N, _A | _B | _C | _D],
        name: str,
        *,
        input: TypeForm[_N],
        continues_with: tuple[JobType[Any, _A], JobType[Any, _B], JobType[Any, _C], JobType[Any, _D]],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        input: TypeForm[I],
        continues_with: JobType[Any, R] | str | Sequence[JobType[Any, R] | str],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: JobType[_N, _O | _A | _B],
        name: str,
        *,
        input: TypeForm[_N],
        output: TypeForm[_O],
        continues_with: tuple[JobType[Any, _A], JobType[Any, _B]],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: JobType[_N, _O | _A | _B | _C],
        name: str,
        *,
        input: TypeForm[_N],
        output: TypeForm[_O],
        continues_with: tuple[JobType[Any, _A], JobType[Any, _B], JobType[Any, _C]],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: JobType[_N, _O | _A],
        name: str,
        *,
        input: TypeForm[_N],
        output: TypeForm[_O],
        continues_with: JobType[Any, _A] | Sequence[JobType[Any, _A] | str],
        **options: Unpack[_Options],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        input: Any,
        output: Any = _Nothing.NONE,
        continues_with: JobType[Any, Any] | str | Sequence[JobType[Any, Any] | str] = (),
        limits: PayloadLimits = DEFAULT_LIMITS,
        blockers: BlockerDeclaration | None = None,
        format: PayloadFormat | None = None,
    ) -> None:
        self.name = checked_type_name(name)
        nexts = (continues_with,) if isinstance(continues_with, str | JobType) else tuple(continues_with)
        options = {"input": input, "continues_with": nexts, "limits": limits, "blockers": blockers, "format": format}
        self._spec = (name, options if output is _Nothing.NONE else {**options, "output": output})
        self._linked = tuple(each for each in nexts if isinstance(each, JobType))
        self.continuations = _names(name, nexts)
        self.blockers: BlockerTypes | None = None if blockers is None else _blockers(name, blockers)
        self.format = PLAIN if format is None else format
        self.can_complete = output is not _Nothing.NONE
        if not self.can_complete and not nexts:
            raise DefinitionError(f"job type {name!r} has neither an output nor a continuation: its chains never end")
        self._input = payload_codec(input, job_type=name, field="input", limits=limits, format=format)
        kept: Any = output if self.can_complete else Any
        self._kept = payload_codec(kept, job_type=name, field="output", limits=limits, format=format)
        self._output = self._kept if self.can_complete else None

    def encode_input(self, value: I) -> str:
        """The input as JSON text.

        Raises:
            PayloadError: it does not fit the type or the limits; ``path`` and ``reason`` say where and why.
        """
        return self._input.encode(value)

    def decode_input(self, text: str | bytes) -> Any:
        """The input, an ``I``, that stored JSON text stands for.

        Raises:
            PayloadDecodeError: the text does not fit the type or the limits.
        """
        return self._input.decode(text)

    def encode_output(self, value: object) -> str:
        """The output of a job of this type as JSON text.

        Raises:
            PayloadError: it does not fit the type or the limits, or this job type has no output of its own.
        """
        if self._output is None:
            raise self._no_output(PayloadError)
        return self._output.encode(value)

    def encode_kept_output(self, value: object) -> str:
        """What a job of this type that does not complete its chain leaves behind, as JSON text.

        Raises:
            PayloadError: it does not fit the type of the output, if there is one, or the limits.
        """
        return self._kept.encode(value)

    def decode_output(self, text: str | bytes) -> Any:
        """The output of a job of this type that stored JSON text stands for.

        For the output of a chain use :meth:`JobTypes.decode_output` with the name of the chain's last job.

        Raises:
            PayloadDecodeError: the text does not fit the type or the limits, or this job type has no output.
        """
        if self._output is None:
            raise self._no_output(PayloadDecodeError)
        return self._output.decode(text)

    def shown(self, field: Literal["input", "output"], stored: Any) -> Any:
        """Decoded JSON of an input or output as it is stored, for showing: out of its envelope if that can be read.

        It is not checked by the model; what cannot be read is returned as it is.
        """
        return (self._input if field == "input" else self._kept).shown(stored)

    def _no_output(self, kind: type[PayloadError]) -> PayloadError:
        reason = f"it has no output of its own; it continues with {', '.join(self.continuations)}"
        return kind(job_type=self.name, field="output", path="output", reason=reason)

    def __repr__(self) -> str:
        nexts = f", continues_with={self.continuations!r}" if self.continuations else ""
        return f"JobType({self.name!r}{nexts})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and process pools send job types by value; the codecs are made anew over there.
        return _rebuild, self._spec


def _rebuild(name: str, options: dict[str, Any]) -> JobType[Any, Any]:
    return JobType[Any, Any](name, **options)


def _names(owner: str, nexts: tuple[object, ...]) -> tuple[str, ...]:
    names = [each.name if isinstance(each, JobType) else checked_type_name(each) for each in nexts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DefinitionError(f"job type {owner!r} names {', '.join(map(repr, twice))} twice in continues_with")
    return tuple(names)


def _blockers(owner: str, given: object) -> BlockerTypes:
    if not isinstance(given, tuple):
        raise DefinitionError(f"blockers of job type {owner!r}: a tuple of job types, not {type(given).__name__}")
    return declared_blockers(owner, [one if one is ... else _blocker_name(one) for one in given])


def _blocker_name(one: object) -> str:
    return one.name if isinstance(one, JobType) else checked_type_name(one)


class JobTypes:
    """The job types that a client or worker knows. It does not change after it is made.

    Registries merge, each job type registered once; continuations must be registered as well, by name::

        media = JobTypes(resize, publish)
        job_types = JobTypes(media, send_mail)
        job_types["resize"]                 # the job type
        "resize" in job_types               # True

    Args:
        members: job types and registries.
        required_codecs: codecs that the format of each job type must hold, so that none is left unencrypted.

    Raises:
        DuplicateJobTypeError: two job types have one name, or one was given twice.
        DefinitionError: a continuation is not registered, or another job type is registered under its name; or a job
            type lacks a codec.
    """

    __slots__ = ("_by_name",)

    def __init__(self, *members: JobType[Any, Any] | JobTypes, required_codecs: Sequence[Codec] = ()) -> None:
        self._by_name: dict[str, JobType[Any, Any]] = {}
        for member in members:
            for job_type in member if isinstance(member, JobTypes) else (member,):
                self._add(job_type)
        for job_type in self:
            self._check_continuations(job_type)
            lacking = [codec.name for codec in required_codecs if codec not in job_type.format.codecs]
            if lacking:
                raise DefinitionError(f"the format of job type {job_type.name!r} lacks the codec {', '.join(lacking)}")

    def _add(self, job_type: object) -> None:
        if not isinstance(job_type, JobType):
            raise DefinitionError(f"JobTypes takes JobType and JobTypes, not {type(job_type).__name__}")
        if job_type.name in self._by_name:
            raise DuplicateJobTypeError(f"job type {job_type.name!r} is registered twice")
        self._by_name[job_type.name] = job_type

    def _check_continuations(self, job_type: JobType[Any, Any]) -> None:
        missing = [name for name in job_type.continuations if name not in self._by_name]
        if missing:
            names = ", ".join(map(repr, missing))
            raise DefinitionError(f"job type {job_type.name!r} continues with {names}: not registered here; add it")
        for linked in job_type._linked:
            if self._by_name[linked.name] is not linked:
                raise DefinitionError(
                    f"job type {job_type.name!r} continues with {linked.name!r}, but another job type is registered "
                    "under that name"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of registration."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> JobType[Any, Any]:
        """The job type of that name.

        Raises:
            UnknownJobTypeError: there is none; the error names the ones that are close.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownJobTypeError(name, self._by_name) from None

    def get(self, name: str) -> JobType[Any, Any] | None:
        """The job type of that name, or ``None``."""
        return self._by_name.get(name)

    def __contains__(self, item: object) -> bool:
        """Whether a name, or this very job type, is registered."""
        if isinstance(item, JobType):
            return self._by_name.get(item.name) is item
        return item in self._by_name

    def __iter__(self) -> Iterator[JobType[Any, Any]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"JobTypes({', '.join(self._by_name)})"

    def output_decoder(self, type_name: str) -> Callable[[str | bytes], Any]:
        """The function that reads outputs of that job type; worth keeping when there are many to read.

        Raises:
            UnknownJobTypeError: no job type of that name is registered.
        """
        return self[type_name].decode_output

    def decode_output(self, type_name: str, text: str | bytes) -> Any:
        """The output of a chain whose last job is of that type.

        Example::

            job_types.decode_output("publish", '{"address": "https://example.org"}')

        Raises:
            UnknownJobTypeError: no job type of that name is registered.
            PayloadDecodeError: the text does not fit the type or the limits.
        """
        return self[type_name].decode_output(text)
