"""What middlewares hand inward to handlers: values under typed keys."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from queuert.errors import ContextMissingError

T = TypeVar("T")
D = TypeVar("D")


class ContextKey(Generic[T]):
    """A key of ``attempt.context`` whose values are of type ``T``. Make one, at the top of a module, and share it::

        TENANT = ContextKey[Tenant]("tenant")

    Two keys of one name are two.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ContextKey({self.name!r})"


class AttemptContext:
    """The values of one attempt, by key. A handler in a child process sees none of them."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ContextKey[Any], Any] = {}

    def set(self, key: ContextKey[T], value: T) -> None:
        """Hand a value inward; one that was set before is replaced."""
        self._values[key] = value

    def __getitem__(self, key: ContextKey[T]) -> T:
        """The value of a key.

        Raises:
            ContextMissingError: nothing was set under it.
        """
        try:
            found: T = self._values[key]
        except KeyError:
            raise ContextMissingError(f"nothing was set in attempt.context under {key!r}: add its middleware") from None
        return found

    @overload
    def get(self, key: ContextKey[T]) -> T | None: ...
    @overload
    def get(self, key: ContextKey[T], default: D) -> T | D: ...
    def get(self, key: ContextKey[Any], default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._values.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"AttemptContext({', '.join(key.name for key in self._values)})"
