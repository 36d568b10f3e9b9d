"""Checks that a function can be the handler of a job type, by its signature and its annotations.

Only what is certainly wrong is rejected. An annotation that cannot be resolved here, that pydantic may convert, or that
a decorator has copied from another function says nothing.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

from pydantic import BaseModel, RootModel

from queuert.errors import HandlerCallError, HandlerSignatureError, PayloadError
from queuert.job_types import HasJobTypes, JobType
from queuert.worker.attempt import Attempt
from queuert.worker.finishes import OUTCOME_CLASSES

_UNKNOWN = inspect.Parameter.empty
"""Of an annotation that is missing or cannot be resolved."""

_Ends: TypeAlias = tuple[JobType[Any, Any], ...]

_SCALARS = (int, float, complex, bool)
"""Type checkers accept one of these for another."""

_PLAIN = (*_SCALARS, str, bytes)


def name_of(handler: object) -> str:
    """Return the module and the qualified name of a handler."""
    function = function_of(handler)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None)}.{named.__qualname__}"


def check_handler(job_type: JobType[Any, Any], handler: object, job_types: HasJobTypes, *, batch: bool = False) -> None:
    """Check the handler of a job type; with ``batch``, one that takes a list of attempts.

    ``job_types`` have those that continue the chain.

    Raises:
        HandlerSignatureError: it cannot be the handler; the message says what it must be, and what was given.
    """
    if isinstance(handler, type):
        _reject(job_type, handler, "must be a function, but it is a class", "register a function, or an instance")
    if not callable(handler):
        raise HandlerSignatureError(f"the handler of job type {job_type.name!r} must be a function, got {handler!r}")
    function = function_of(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        _reject(job_type, handler, "must return one outcome, but it is a generator", "use return instead of yield")
    parameter = _check_parameters(job_type, handler, batch)
    if hasattr(function, "__wrapped__"):
        return  # Its annotations may be those of the function that it wraps.
    ends = _ends_of(job_type, job_types)
    if parameter is not None:
        _check_attempt(job_type, handler, _resolved(function, parameter.annotation), ends, batch)
    returned = getattr(function, "__annotations__", {}).get("return", _UNKNOWN)
    _check_returned(job_type, handler, _resolved(function, returned), ends, batch)


def call_error(job_type: str, handler: object, error: BaseException) -> HandlerCallError | None:
    """Return the error of a handler that was not entered, since its call raised a TypeError; else None."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(error, TypeError) or trace is None:
        return None
    code, module = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__")
    if (module, code.co_name) not in _CALLERS:
        return None
    not_called = HandlerCallError(
        f"the handler {name_of(handler)} of job type {job_type!r} could not be called with its attempt: {error}"
    )
    not_called.__cause__ = error
    return not_called


_CALLERS = {
    ("queuert.worker.runner", "_call_handler"),
    ("queuert.worker.runner", "_call_guarded"),
    ("queuert.worker.runner", "_run_handler"),
    ("queuert.worker.runner", "<lambda>"),
    ("queuert.worker.forks", "guarded"),
    ("queuert.worker.batches", "<lambda>"),
    ("queuert.worker.processes.child", "_outcome"),
}
"""The functions that call handlers: a TypeError whose innermost frame is one of these was not raised by a handler."""


def _reject(job_type: JobType[Any, Any], handler: object, problem: str, advice: str) -> NoReturn:
    raise HandlerSignatureError(f"the handler {name_of(handler)} of job type {job_type.name!r} {problem}: {advice}")


def function_of(handler: object) -> Any:
    """Return the function behind a partial, a bound method or an object with ``__call__``."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.ismethod(handler):
        return handler.__func__
    if inspect.isroutine(handler) or isinstance(handler, type):
        return handler
    call = getattr(type(handler), "__call__", None)  # noqa: B004
    return call if inspect.isfunction(call) else handler


def _check_parameters(job_type: JobType[Any, Any], handler: object, batch: bool) -> inspect.Parameter | None:
    """Return the parameter that takes the attempt, if it is known."""
    if hasattr(handler, "__signature__"):
        return None  # A decorator has written it; it need not be what the call accepts.
    try:
        signature = inspect.signature(handler, follow_wrapped=False)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    try:
        bound = signature.bind(None)
    except TypeError as error:
        what = "the list of attempts" if batch else "the attempt"
        shape = "def handler(attempts)" if batch else "def handler(attempt)"
        _reject(
            job_type,
            handler,
            f"must take one argument, {what}, but its parameters are {signature.replace(return_annotation=_UNKNOWN)} "
            f"({error})",
            f"write {shape}, and get other values from a partial, a middleware or the lifespan",
        )
    parameter = signature.parameters[next(iter(bound.arguments))] if bound.arguments else None
    return None if parameter is None or parameter.kind is parameter.VAR_POSITIONAL else parameter


def _resolved(function: Any, annotation: Any) -> Any:
    """Return the annotation as an object; ``_UNKNOWN`` if it is missing or cannot be resolved for certain."""
    if not isinstance(annotation, str):
        return annotation
    if "<locals>" in getattr(function, "__qualname__", ""):
        return _UNKNOWN  # A local class could have the name of another one in the module.

    def annotated() -> None: ...

    annotated.__annotations__ = {"annotation": annotation}
    try:
        found = typing.get_type_hints(annotated, getattr(function, "__globals__", {}), include_extras=True)
        return found["annotation"]
    except Exception:
        return _UNKNOWN


# --- what the annotations say -----------------------------------------------------------------------------------------


def _check_attempt(job_type: JobType[Any, Any], handler: object, annotation: Any, ends: _Ends, batch: bool) -> None:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if batch and origin is not Attempt and annotation is not Attempt:
        if not (isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and len(arguments) == 1):
            return
        annotation = arguments[0]
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    elif batch:
        _reject(
            job_type,
            handler,
            f"must take a list of attempts, but its parameter is annotated with {_shown(annotation)}",
            "annotate it with Sequence[Attempt[...]], or use handles",
        )
    taken = _class(annotation)
    if taken is not None and _differ(taken, Attempt):
        right = "Sequence[Attempt[...]]" if batch else "Attempt[...]"
        _reject(
            job_type,
            handler,
            f"must take an Attempt, but its parameter is annotated with {_shown(annotation)}",
            f"annotate it with {right}, and read attempt.input",
        )
    if origin is Attempt and arguments and _certainly_other(arguments[0], job_type.input_annotation):
        _reject(
            job_type,
            handler,
            f"must take an Attempt[{_shown(job_type.input_annotation)}, ...], the input of its job type, but it takes "
            f"an Attempt[{_shown(arguments[0])}, ...]",
            "correct the annotation, or register it for the job type that it is meant for",
        )
    if origin is Attempt and len(arguments) > 1 and _is_other_result(ends, _members(arguments[1])):
        _reject(
            job_type,
            handler,
            f"must take an Attempt[..., {_result_of(ends)}], with the output of its "
            f"{'chain' if job_type.continuations else 'job type'}, but it takes an "
            f"Attempt[..., {_shown(arguments[1])}]",
            "correct the annotation, or register it for the job type that it is meant for",
        )


def _ends_of(job_type: JobType[Any, Any], job_types: HasJobTypes) -> _Ends:
    """Return the job types that may end a chain which is at this one; none if they are not all known."""
    found = {job_type.name: job_type}
    left = [job_type]
    while left:
        for name in left.pop().continuations:
            if name not in found:
                next_type = job_types.get(name)
                if next_type is None:
                    return ()
                found[name] = next_type
                left.append(next_type)
    return tuple(each for each in found.values() if each.can_complete)


def _result_of(ends: _Ends) -> str:
    """Return the result of a chain, as it is written."""
    return " | ".join(dict.fromkeys(_shown(each) for end in ends for each in _members(end.output_annotation)))


def _is_other_result(ends: _Ends, annotations: Iterable[Any]) -> bool:
    """Whether these annotations certainly are no result of a chain that one of these job types ends."""
    found = list(annotations)
    return bool(ends) and bool(found) and all(_no_output(end, each) for each in found for end in ends)


def _is_outcome(annotation: Any) -> bool:
    found = _class(annotation)
    return found is not None and any(not _differ(found, outcome) for outcome in OUTCOME_CLASSES)


def _check_returned(job_type: JobType[Any, Any], handler: object, annotation: Any, ends: _Ends, batch: bool) -> None:
    if batch:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if not (isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and len(arguments) == 1):
            return
        annotation = arguments[0]
    if annotation is _UNKNOWN:
        return
    members = list(_members(annotation))
    # Outcome[R] is R or what is no output; Continues[R] is that without R.
    outputs = [each for each in members if not _is_outcome(each)]
    results = outputs or [result for each in members for result in typing.get_args(each)]
    if all(_no_outcome(job_type, each) for each in members) or _is_other_result(ends, results):
        known = _result_of(ends) if ends else "..."
        first = _shown(job_type.output_annotation) if job_type.can_complete else f"Continues[{known}]"
        next_types = ", ".join(map(repr, job_type.continuations))
        written = _shown(annotation)
        if len(members) > len(outputs):
            shown = " | ".join(dict.fromkeys(map(_shown, results)))
            written = f"{'Outcome' if outputs else 'Continues'}[{shown}]"
        only = "" if job_type.can_complete else f" (it has no output, and continues with {next_types})"
        _reject(
            job_type,
            handler,
            f"must return {first} or Outcome[{known}]{only}, but it is annotated to return {written}",
            "return an outcome of its job type, and annotate it so",
        )


def _no_outcome(job_type: JobType[Any, Any], annotation: Any) -> bool:
    """Whether a handler of this job type certainly cannot return a value of this annotation."""
    found = _class(annotation)
    if found is None or _is_outcome(annotation):
        return False
    if issubclass(found, collections.abc.Awaitable):
        return False  # A plain function may return what is awaited for it.
    return not job_type.can_complete or _no_output(job_type, annotation)


def _no_output(job_type: JobType[Any, Any], annotation: Any) -> bool:
    """Whether a job of this type certainly cannot end with an output of this annotation."""
    found = _class(annotation)
    if found is None or _is_outcome(annotation) or issubclass(found, collections.abc.Awaitable):
        return False
    if found is types.NoneType:
        return _rejects_none(job_type)
    outputs = [_class(each) for each in _members(job_type.output_annotation)]
    if not _certainly_other(annotation, job_type.output_annotation):
        return False
    # Pydantic converts many values into others, such as texts into numbers, but not models.
    if found in _PLAIN:
        return all(map(_is_plain_model, outputs))
    return _is_plain_model(found) and all(_is_plain_model(each) or each in _PLAIN for each in outputs)


def _rejects_none(job_type: JobType[Any, Any]) -> bool:
    try:
        job_type.encode_output(None)
    except PayloadError:
        return True
    except Exception:
        return False
    return False


def _is_plain_model(found: type | None) -> bool:
    """Whether it is a model that pydantic makes only of its own instances, and of dicts."""
    if not isinstance(found, type) or not issubclass(found, BaseModel) or issubclass(found, RootModel):
        return False
    validators = found.__pydantic_decorators__.model_validators.values()
    return not found.model_config.get("from_attributes") and all(each.info.mode == "after" for each in validators)


def _certainly_other(annotation: Any, declared: Any) -> bool:
    """Whether no value of ``declared`` can be meant by ``annotation``."""
    return all(
        (first := _class(one)) is not None and (second := _class(other)) is not None and _differ(first, second)
        for one in _members(annotation)
        for other in _members(declared)
    )


def _members(annotation: Any) -> Iterable[Any]:
    """Return the members of a union; of another annotation, itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for each in typing.get_args(annotation) for member in _members(each)]
    return [annotation]


def _class(annotation: Any) -> type | None:
    """Return the class that an annotation names, if it says all that there is to know of it."""
    if annotation is None:
        return types.NoneType
    origin = typing.get_origin(annotation)
    found = annotation if origin is None else origin
    if not isinstance(found, type) or found in (_UNKNOWN, typing.Any, object):
        return None
    if typing.is_typeddict(found) or getattr(found, "_is_protocol", False):
        return None
    if hasattr(found, "__get_pydantic_core_schema__") and not issubclass(found, BaseModel):
        return None  # Such as PastDate, whose values are dates.
    return found


def _differ(one: type, other: type) -> bool:
    """Whether neither class is a subclass of the other, and they are not two versions of one class."""
    if one in _SCALARS and other in _SCALARS:
        return False
    if one.__qualname__ == other.__qualname__:
        return False  # The module was imported twice, or a cell of a notebook was run again.
    try:
        return not issubclass(one, other) and not issubclass(other, one)
    except TypeError:
        return False


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return "None" if annotation is types.NoneType else annotation.__qualname__
    return "None" if annotation is None else str(annotation).replace("typing.", "")
