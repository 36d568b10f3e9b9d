"""What a client says that is entered by the other form of ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from queuert.errors import DefinitionError


class WrongWithError(DefinitionError, AttributeError):
    """An object was entered by ``with`` instead of ``async with``, or the reverse; the message says what to write.

    It is an AttributeError, so that ``hasattr`` answers no: programs ask that way how an object is entered.
    """


class _Refused:
    """A method that Python looks for in ``with``: to look is an error.

    Its pair, such as ``__exit__``, is left out. With both, the object would pass for a manager of this form, as
    ``isinstance(client, AbstractContextManager)`` tells, and be entered in the wrong form by who asks.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __get__(self, instance: object, owner: type) -> Self:
        if instance is None:
            return self
        name = owner.__name__
        raise WrongWithError(self._advice.format(name=name, other=name.removeprefix("Async")))


class AsyncEntered:
    """Says to who writes ``with`` that it is ``async with``."""

    if not TYPE_CHECKING:  # Type checkers report it by themselves.
        __enter__ = _Refused(
            "{name} is for coroutines: write async with {name}(...), got with; in a plain function use {other}"
        )


class Entered:
    """Says to who writes ``async with`` that it is ``with``."""

    if not TYPE_CHECKING:
        __aenter__ = _Refused(
            "{name} is for plain functions: write with {name}(...), got async with; in a coroutine use Async{name}"
        )
