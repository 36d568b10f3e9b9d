"""What a job type declares of the chains that its jobs wait for: job types by name, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

from queuert.errors import BlockerMismatchError, DefinitionError


@dataclass(frozen=True, slots=True)
class BlockerTypes:
    """The job types that blockers begin with, in order.

    Attributes:
        owner: the name of the job type that declares them.
        names: the names of their job types.
        repeated: whether the last name stands for any number of chains, none among them.
    """

    owner: str
    names: tuple[str, ...]
    repeated: bool = False

    def check(self, types: Sequence[str | None]) -> None:
        """Refuse blockers that are not as declared; those whose type is not known (None) only count.

        Raises:
            BlockerMismatchError: one is of another type, or there are too many or too few.
        """
        fixed = self.names[:-1] if self.repeated else self.names
        if len(types) < len(fixed) or (len(types) > len(fixed) and not self.repeated):
            raise BlockerMismatchError(f"a job of type {self.owner!r} waits for {self}: {len(types)} were given")
        for position, found in enumerate(types):
            wanted = self.names[min(position, len(self.names) - 1)]
            if found is not None and found != wanted:
                raise BlockerMismatchError(
                    f"a job of type {self.owner!r} waits for {self}: blocker {position + 1} is of type {found!r}"
                )

    def __str__(self) -> str:
        if not self.names:
            return "no chains"
        return f"chains of types {', '.join(map(repr, self.names))}{', ...' if self.repeated else ''}"


def declared_blockers(owner: str, names: Sequence[str | EllipsisType]) -> BlockerTypes:
    """The declaration, of names and perhaps an ellipsis at its end.

    Raises:
        DefinitionError: the ellipsis stands elsewhere, or repeats nothing.
    """
    found = tuple(name for name in names if isinstance(name, str))
    repeated = len(found) < len(names)
    if repeated and (not found or tuple(names) != (*found, ...)):
        raise DefinitionError(f"blockers of job type {owner!r}: '...' stands once, last, and after what it repeats")
    return BlockerTypes(owner, found, repeated)
