"""Job types: a name with typed input and output, and the job types that may come next.

Job types hold no handler, so a program that only starts chains (a web process, a Spark driver) imports them without
importing the handlers.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from types import EllipsisType, FrameType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

from queuert.blocker_types import BlockerTypes, declared_blockers
from queuert.codecs import PLAIN, Codec, PayloadFormat
from queuert.codecs.payloads import payload_codec
from queuert.errors import (
    DefinitionError,
    DefinitionWarning,
    DuplicateJobTypeError,
    PayloadDecodeError,
    PayloadError,
    UnknownJobTypeError,
)
from queuert.limits import TypeTraits
from queuert.payloads import DEFAULT_LIMITS, PayloadLimits
from queuert.phases import PhaseDeclaration, checked_phases
from queuert.policies import Retention, checked_ttl

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


_TYPE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_MAX_TYPE_NAME = 128
RESERVED = "queuert."
"""Beginning of the names of the library's own job types: of bulk operations, and of deliveries of webhooks. What is
said of chains of all types does not mean theirs, only what names them."""
BULK_OPERATION_TYPE = f"{RESERVED}bulk_operation"
"""The job type of bulk operations. Workers run its jobs beside those of their processors."""


def checked_type_name(name: object) -> str:
    """Return the name, if it is allowed for a job type.

    Raises:
        DefinitionError: it is not 1 to 128 characters of ``A-Z a-z 0-9 _ . : / -`` beginning with a letter or ``_``.
    """
    if isinstance(name, str) and len(name) <= _MAX_TYPE_NAME and _TYPE_NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 2 * _MAX_TYPE_NAME else f"one of {len(repr(name))} characters"
    raise DefinitionError(
        f"a job type name must be 1 to {_MAX_TYPE_NAME} characters of A-Z a-z 0-9 _ . : / - and begin with a letter "
        f"or _, got {shown}"
    )


def _own_type_name(name: object) -> str:
    """Return the name, if an application may define a job type of it."""
    checked = checked_type_name(name)
    if checked.startswith(RESERVED):
        raise DefinitionError(
            f"a job type name must not begin with {RESERVED!r}, got {checked!r}: these names are the library's own"
        )
    return checked


def _checked_completed_by(name: str, completed_by: object) -> Literal["worker", "client"]:
    if completed_by == "worker":
        return "worker"
    if completed_by == "client":
        return "client"
    raise DefinitionError(f"completed_by of job type {name!r} must be 'worker' or 'client', got {completed_by!r}")


def _checked_overdue_after(name: str, completed_by: str, overdue_after: object) -> float | None:
    if overdue_after is None:
        return None
    if completed_by != "client":
        raise DefinitionError(
            f"overdue_after of job type {name!r} needs completed_by='client', got {overdue_after!r} for jobs that "
            "workers complete: leave it out, or see timeout= of handles()"
        )
    return checked_ttl(f"overdue_after of job type {name!r}", overdue_after)


def _checked_closes_with_parent(name: str, closes_with_parent: object) -> bool:
    if type(closes_with_parent) is not bool:
        raise DefinitionError(f"closes_with_parent of job type {name!r} must be a bool, got {closes_with_parent!r}")
    return closes_with_parent


def _checked_retention(name: str, completed_by: str, retention: object) -> Retention:
    if retention is None:
        return Retention()
    if not isinstance(retention, Retention):
        raise DefinitionError(f"retention of job type {name!r} must be a Retention, got {retention!r}")
    if completed_by != "client":
        raise DefinitionError(
            f"retention of job type {name!r} needs completed_by='client': for jobs that workers complete it is an "
            "argument of Processors and of handles()"
        )
    return retention


class _Options(TypedDict, total=False):
    """The options that do not affect the inferred type of the result."""

    limits: PayloadLimits
    blockers: BlockerDeclaration | None
    format: PayloadFormat | None
    phases: PhaseDeclaration
    completed_by: Literal["worker", "client"]
    overdue_after: float | timedelta | None
    retention: Retention | None
    closes_with_parent: bool


class JobType(Generic[I, R]):
    """Declares a type of job: its name, its input, and the result of the chain that it starts.

    ``JobType[I, R]`` takes an ``I``, and the chain that it starts results in an ``R``: the job's own ``output`` if it
    may complete the chain, or the result of any job type that it may continue with. Both are inferred::

        publish = JobType("publish", input=Thumbnail, output=Published)
        resize = JobType("resize", input=Resize, continues_with=publish)    # JobType[Resize, Published]

    Continuations are job types, names (for loops, and for job types declared later), or a tuple of both. A type checker
    infers nothing from a name: if there are only names, annotate the variable. Annotate it too where mypy merges
    different job types: in a list, and in a tuple longer than four (three with an ``output``)::

        poll = JobType("poll", input=Poll, output=Done, continues_with="poll")
        fetch: JobType[Fetch, Done] = JobType("fetch", input=Fetch, continues_with="poll")

    ``blockers`` declares which chains a job of this type waits for, by the job types of their first jobs: a fixed
    sequence, any number of one type, or both. Other blockers are refused; without a declaration any are allowed::

        page = JobType("page", input=int, output=str)
        header = JobType("header", input=None, output=str)
        book = JobType("book", input=str, output=str, blockers=(header, page, ...))

    Inputs and outputs outlive a deployment: the program that reads one may be older or newer than the one that wrote
    it, so give new fields defaults.

    Args:
        name: at most 128 letters, digits and ``_ . : / -``, beginning with a letter or ``_``, and not with
            ``queuert.``: such names are the library's own.
        input: the type of the input: anything that a pydantic ``TypeAdapter`` takes, such as a model, a dataclass, a
            ``TypedDict`` (that of ``typing_extensions`` before Python 3.12), ``int``, ``list[str]`` or ``None``.
        output: the type of the output, if a job of this type may complete its chain.
        continues_with: the job types that may come next.
        limits: the maximum size, depth and digits of inputs and outputs.
        blockers: a tuple of job types or their names, which need not be registered; ``...`` repeats the last one.
        format: how inputs and outputs are stored, see :mod:`queuert.codecs`; by default as plain JSON.
        phases: the names of the parts of a job, in the order in which its handler runs them with ``attempt.phase``; or
            a dict of names and weights, which say what share of the work each is.
        completed_by: ``"client"`` for jobs that wait for a person or another program: they have no handler, and end
            when a client calls ``complete_chain`` or ``continue_chain``.
        overdue_after: seconds, or a timedelta, for which a job may wait for a client before it counts as overdue, which
            operators see; None: for ever. Nothing else happens to it.
        retention: which closed chains are kept that begin with a job of this type, if clients complete it: by default
            completed and cancelled ones for 14 days. Any worker that knows the type applies it. For other types it is
            an argument of ``Processors`` and ``handles``.
        closes_with_parent: True for work that is of no use without the job that waits for it. Open chains of it are
            cancelled when their last waiting job is cancelled, or when a client completes or continues the chain of
            that job. By default they go on.

    Attributes:
        name: the name.
        continuations: the names of the job types that may come next, in order.
        can_complete: whether a job of this type may complete its chain, that is, has an output.
        blockers: the declared blockers; None if any are allowed.
        format: how inputs and outputs are stored.
        phases: the names of its phases, in order, and their weights.
        completed_by: ``"worker"`` or ``"client"``.
        overdue_after: seconds after which a job that waits for a client is overdue; None: never.
        retention: which closed chains are kept that begin with it; of no effect if workers complete it.
        closes_with_parent: whether chains that begin with it are cancelled when nobody waits for them any more.
        traits: what workers record of it, for programs that do not know it; None if there is nothing to say.
        module: the name of the module that has made it, for errors.

    Raises:
        DefinitionError: the name is not allowed, a type has no JSON form, both output and continuations are missing,
            ``blockers`` is not a tuple as described, a phase has no valid name or weight, or ``overdue_after`` or
            ``retention`` is given for jobs that workers complete.
        ConfigurationError: ``overdue_after`` is out of range.

    Warns:
        DefinitionWarning: an input or output has a union whose members are alike, so that one is read back as another.
    """

    __slots__ = (
        "_input", "_kept", "_linked", "_output", "_spec", "blockers", "can_complete", "closes_with_parent",
        "completed_by", "continuations", "format", "module", "name", "overdue_after", "phases", "retention",
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
        phases: PhaseDeclaration = (),
        completed_by: Literal["worker", "client"] = "worker",
        overdue_after: float | timedelta | None = None,
        retention: Retention | None = None,
        closes_with_parent: bool = False,
    ) -> None:
        self.name = self._checked_name(name)
        self.module = calling_module("typing", __name__)
        nexts = (continues_with,) if isinstance(continues_with, str | JobType) else tuple(continues_with)
        self.phases = checked_phases(name, phases)
        options = {"input": input, "continues_with": nexts, "limits": limits, "blockers": blockers, "format": format}
        options |= {"phases": self.phases} if self.phases else {}
        self.completed_by: Literal["worker", "client"] = _checked_completed_by(name, completed_by)
        self.overdue_after = _checked_overdue_after(name, self.completed_by, overdue_after)
        self.retention = _checked_retention(name, self.completed_by, retention)
        if self.completed_by == "client":
            options |= {"completed_by": self.completed_by, "overdue_after": self.overdue_after}
            options |= {"retention": self.retention}
        self.closes_with_parent = _checked_closes_with_parent(name, closes_with_parent)
        options |= {"closes_with_parent": True} if self.closes_with_parent else {}
        self._spec = (name, options if output is _Nothing.NONE else {**options, "output": output})
        self._linked = tuple(each for each in nexts if isinstance(each, JobType))
        self.continuations = _names(name, nexts)
        self.blockers: BlockerTypes | None = None if blockers is None else _blockers(name, blockers)
        self.format = PLAIN if format is None else format
        self.can_complete = output is not _Nothing.NONE
        if not self.can_complete and not nexts:
            raise DefinitionError(
                f"job type {name!r} must have an output or a continuation, or its chains never close: "
                "pass output= or continues_with="
            )
        self._input = payload_codec(input, job_type=name, field="input", limits=limits, format=format)
        kept: Any = output if self.can_complete else Any
        self._kept = payload_codec(kept, job_type=name, field="output", limits=limits, format=format)
        self._output = self._kept if self.can_complete else None
        _warn([*self._input.warnings(), *self._kept.warnings()])

    @staticmethod
    def _checked_name(name: object) -> str:
        return _own_type_name(name)

    @property
    def traits(self) -> TypeTraits | None:
        """What workers record of it, for programs that do not know it; None if there is nothing to say."""
        by_client = self.completed_by == "client"
        if not (by_client or self.closes_with_parent):
            return None
        return TypeTraits(self.name, by_client, self.overdue_after, self.closes_with_parent)

    @property
    def needed_types(self) -> frozenset[str]:
        """The names of the types that its chains need besides it: its continuations and its blockers."""
        return frozenset((*self.continuations, *(() if self.blockers is None else self.blockers.names)))

    @property
    def input_annotation(self) -> Any:
        """The type of the input, as it was passed."""
        return self._spec[1]["input"]

    @property
    def output_annotation(self) -> Any:
        """The type of the output, as it was passed; ``Any`` if there is none."""
        return self._spec[1].get("output", Any)

    @property
    def limits(self) -> PayloadLimits:
        """The maximum size, depth and digits of inputs and outputs."""
        limits: PayloadLimits = self._spec[1]["limits"]
        return limits

    def encode_input(self, value: I) -> str:
        """Return the input as JSON text.

        Raises:
            PayloadError: it is not valid for the type, or exceeds the limits; ``path`` and ``reason`` say where and
                why.
        """
        return self._input.encode(value)

    def decode_input(self, text: str | bytes) -> Any:
        """Return the input, an ``I``, from stored JSON text.

        Raises:
            PayloadDecodeError: the text is not valid for the type, or exceeds the limits.
        """
        return self._input.decode(text)

    def encode_output(self, value: object) -> str:
        """Return the output of a job of this type as JSON text.

        Raises:
            PayloadError: it is not valid for the type, exceeds the limits, or this job type declares no output.
        """
        if self._output is None:
            raise self._no_output(PayloadError)
        return self._output.encode(value)

    def encode_kept_output(self, value: object) -> str:
        """Return, as JSON text, the output that is kept with a job that continues its chain.

        Raises:
            PayloadError: it is not valid for the type of the output, if there is one, or exceeds the limits.
        """
        return self._kept.encode(value)

    def decode_kept_output(self, text: str | bytes) -> Any:
        """Return the output that is kept with a job that continued its chain, from stored JSON text.

        Raises:
            PayloadDecodeError: the text is not valid for the type of the output, if any, or exceeds the limits.
        """
        return self._kept.decode(text)

    def decode_output(self, text: str | bytes) -> Any:
        """Return the output of a job of this type from stored JSON text.

        For the output of a chain use :meth:`JobTypes.decode_output` with the job type of the chain's last job.

        Raises:
            PayloadDecodeError: the text is not valid for the type, exceeds the limits, or this job type declares no
                output.
        """
        if self._output is None:
            raise self._no_output(PayloadDecodeError)
        return self._output.decode(text)

    def shown(self, field: Literal["input", "output"], stored: Any) -> Any:
        """Return the stored JSON of an input or output for display: decoded by its format, if that can read it.

        The model does not validate it. A value that the format cannot read is returned unchanged.
        """
        return (self._input if field == "input" else self._kept).shown(stored)

    if TYPE_CHECKING:
        # What type checkers take a job type to be that some output must fit, see ``HasResult``. ``R`` is covariant.
        def _results_in(self, result: R, /) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

    def _no_output(self, kind: type[PayloadError]) -> PayloadError:
        reason = f"the job type declares no output; it continues with {', '.join(self.continuations)}"
        return kind(job_type=self.name, field="output", path="output", reason=reason)

    def __repr__(self) -> str:
        nexts = f", continues_with={self.continuations!r}" if self.continuations else ""
        return f"JobType({self.name!r}{nexts})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and process pools pickle job types; the codecs are built again in the other process.
        return _rebuild, (*self._spec, self.module)


class LibraryJobType(JobType[I, R]):
    """A job type of the library's own, whose name begins with ``queuert.``. Clients need not know it."""

    __slots__ = ()

    @staticmethod
    def _checked_name(name: object) -> str:
        return checked_type_name(name)


def _rebuild(name: str, options: dict[str, Any], module: str) -> JobType[Any, Any]:
    rebuilt = JobType[Any, Any](name, **options)
    rebuilt.module = module
    return rebuilt


def calling_module(*skipped: str) -> str:
    """Return the name of the module whose code makes an object; that of its class, and other modules, are skipped."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in skipped:
        frame = frame.f_back
    return "unknown" if frame is None else str(frame.f_globals.get("__name__", "unknown"))


def _warn(messages: list[str]) -> None:
    """Warn where a job type is made; not where it is unpickled, as the process that has made it has warned."""
    frame: FrameType | None = sys._getframe(2) if messages else None
    while frame is not None and frame.f_globals.get("__name__") in ("typing", __name__):
        frame = None if frame.f_code is _rebuild.__code__ else frame.f_back
    if frame is not None:
        seen = frame.f_globals.setdefault("__warningregistry__", {})
        for message in messages:
            warnings.warn_explicit(message, DefinitionWarning, frame.f_code.co_filename, frame.f_lineno, registry=seen)


def not_a_job_type(given: object, parameter: str = "job_type") -> DefinitionError:
    """Return the error of something else that was passed where a JobType is needed."""
    return DefinitionError(
        f"{parameter} must be a JobType, got {given!r}: pass the object that JobType(...) has made, such as "
        'client.job_types["name"]'
    )


def not_registered(job_type: JobType[Any, Any], registered: HasJobTypes) -> UnknownJobTypeError | DuplicateJobTypeError:
    """Return the error of a job type that is not registered, or whose name another job type has."""
    other = registered.get(job_type.name)
    if other is None:
        return UnknownJobTypeError(job_type.name, registered.names)
    if other.module == job_type.module:
        problem = f"module {job_type.module!r} has made two of them: it was imported or run twice, or defines both"
    else:
        problem = f"the one passed was made in module {job_type.module!r}, the registered one in {other.module!r}"
    return DuplicateJobTypeError(
        f"job type {job_type.name!r} is not the one that is registered under this name; {problem}: make it once, in "
        "one module, and import it from there"
    )


class HasJobTypes(Protocol):
    """The part of ``JobTypes`` that errors need."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the job types."""
        ...

    def get(self, name: str, /) -> JobType[Any, Any] | None:
        """Return the job type of this name, or None."""
        ...


def _names(owner: str, nexts: tuple[object, ...]) -> tuple[str, ...]:
    names = [each.name if isinstance(each, JobType) else checked_type_name(each) for each in nexts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        shown = ", ".join(map(repr, twice))
        raise DefinitionError(f"continues_with of job type {owner!r} must name each job type once, got {shown} twice")
    return tuple(names)


def _blockers(owner: str, given: object) -> BlockerTypes:
    if not isinstance(given, tuple):
        raise DefinitionError(
            f"blockers of job type {owner!r} must be a tuple of job types, got {type(given).__name__}"
        )
    return declared_blockers(owner, [one if one is ... else _blocker_name(one) for one in given])


def _blocker_name(one: object) -> str:
    return one.name if isinstance(one, JobType) else checked_type_name(one)


class JobTypes:
    """Holds the job types of a client or worker. It is immutable.

    ``JobTypes`` can be merged, as long as each job type is registered once; continuations must be registered as well::

        media = JobTypes(resize, publish)
        job_types = JobTypes(media, send_mail)
        job_types["resize"]                 # the job type
        "resize" in job_types               # True

    Args:
        members: job types, and other ``JobTypes``.
        required_codecs: codecs that the format of each job type must have, so that no job type is left unencrypted by
            mistake.

    Raises:
        DuplicateJobTypeError: two job types have the same name, or one was passed twice.
        DefinitionError: a continuation is not registered, another job type is registered under its name, or a job type
            lacks a required codec.
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
                raise DefinitionError(
                    f"format of job type {job_type.name!r} must have the required codec {', '.join(lacking)}"
                )

    def _add(self, job_type: object) -> None:
        if not isinstance(job_type, JobType):
            raise DefinitionError(f"JobTypes takes JobType and JobTypes objects, got {type(job_type).__name__}")
        other = self._by_name.get(job_type.name)
        if other is not None:
            where = "" if other is job_type else f", from module {other.module!r} and from module {job_type.module!r}"
            raise DuplicateJobTypeError(
                f"job type {job_type.name!r} is registered twice{where}: rename one, or pass it once"
            )
        self._by_name[job_type.name] = job_type

    def _check_continuations(self, job_type: JobType[Any, Any]) -> None:
        missing = [name for name in job_type.continuations if name not in self._by_name]
        if missing:
            names = ", ".join(map(repr, missing))
            raise DefinitionError(
                f"job type {job_type.name!r} continues with {names}, which must be registered here too"
            )
        for linked in job_type._linked:
            if self._by_name[linked.name] is not linked:
                raise DefinitionError(
                    f"job type {job_type.name!r} continues with {linked.name!r}, but another job type is registered "
                    "under that name: register the one that continues_with refers to"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the job types, in the order of registration."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> JobType[Any, Any]:
        """Return the job type of this name.

        Raises:
            UnknownJobTypeError: no job type of this name is registered; the error suggests similar names.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownJobTypeError(name, self._by_name) from None

    def get(self, name: str) -> JobType[Any, Any] | None:
        """Return the job type of this name, or ``None``."""
        return self._by_name.get(name)

    def __contains__(self, item: object) -> bool:
        """Whether a job type of this name, or this very job type, is registered."""
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
        """Return the function that decodes outputs of a job type; keep it if there are many to decode.

        Raises:
            UnknownJobTypeError: no job type of this name is registered.
        """
        return self[type_name].decode_output

    def decode_output(self, type_name: str, text: str | bytes) -> Any:
        """Return the output of a chain whose last job is of this type.

        Example::

            job_types.decode_output("publish", '{"address": "https://example.org"}')

        Raises:
            UnknownJobTypeError: no job type of this name is registered.
            PayloadDecodeError: the text is not valid for the type, or exceeds the limits.
        """
        return self[type_name].decode_output(text)
