"""The declaration of a job type's blockers: names of job types, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

from queuert.errors import BlockerMismatchError, DefinitionError


@dataclass(frozen=True, slots=True)
class BlockerTypes:
    """The job types that the blockers of a job must have, in order.

    Attributes:
        owner: the name of the job type that declares them.
        names: the names of the blockers' job types.
        repeated: whether the last name matches any number of chains, also none.
    """

    owner: str
    names: tuple[str, ...]
    repeated: bool = False

    def check(self, types: Sequence[str | None]) -> None:
        """Check that blockers match the declaration; a blocker of unknown type (None) matches any.

        Raises:
            BlockerMismatchError: a blocker is of another type, or there are too many or too few.
        """
        fixed = self.names[:-1] if self.repeated else self.names
        if len(types) < len(fixed) or (len(types) > len(fixed) and not self.repeated):
            raise BlockerMismatchError(
                f"blockers of a job of type {self.owner!r} must be {self}, got {len(types)}; "
                "pass them in the declared order"
            )
        for position, found in enumerate(types):
            wanted = self.names[min(position, len(self.names) - 1)]
            if found is not None and found != wanted:
                raise BlockerMismatchError(
                    f"blockers of a job of type {self.owner!r} must be {self}, "
                    f"but blocker {position + 1} is of type {found!r}; pass them in the declared order"
                )

    def __str__(self) -> str:
        if not self.names:
            return "no chains"
        return f"chains of types {', '.join(map(repr, self.names))}{', ...' if self.repeated else ''}"


def declared_blockers(owner: str, names: Sequence[str | EllipsisType]) -> BlockerTypes:
    """Return the declaration, from names that an ellipsis may follow.

    Raises:
        DefinitionError: the ellipsis is not last, or follows nothing.
    """
    found = tuple(name for name in names if isinstance(name, str))
    repeated = len(found) < len(names)
    if repeated and (not found or tuple(names) != (*found, ...)):
        raise DefinitionError(
            f"blockers of job type {owner!r} must have '...' only once, at the end, after the job type that it repeats"
        )
    return BlockerTypes(owner, found, repeated)
