"""A chain with the chains that it waited for: what ``client.get_chain_tree`` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from queuert.jobs import ChainStatus

MAX_DEPTH = 100
"""The highest ``max_depth`` of ``get_chain_tree``."""

MAX_CHAINS = 10_000
"""The highest ``max_chains`` of ``get_chain_tree``."""


class _Handle(Protocol):
    """A chain of a client of either mode."""

    id: str
    type: str

    @property
    def status(self) -> ChainStatus:
        """Its status."""
        ...


C = TypeVar("C", bound=_Handle, covariant=True)


@dataclass(frozen=True, slots=True)
class ChainTree(Generic[C]):
    """A chain, and the chains that its jobs wait for or waited for, each with those of its own.

    Attributes:
        chain: its handle, as it was read.
        waiting_job_id: the id of the job that waits for it; None for the chain at the top.
        blockers: the chains that its jobs wait for, in the order of the jobs, and within a job as they were passed.
        repeated: whether the chain is in the tree once more, nearer to the top: its blockers are there.
        incomplete: whether there are more blockers than those shown, for the bounds of the call.

    Example::

        for one in client.get_chain_tree(order).walk():
            print(one.chain.type, one.chain.status)
    """

    chain: C
    waiting_job_id: str | None = None
    blockers: tuple[ChainTree[C], ...] = ()
    repeated: bool = False
    incomplete: bool = False

    def walk(self) -> Iterator[ChainTree[C]]:
        """This tree, and then all trees below it, each before its own blockers."""
        yield self
        for blocker in self.blockers:
            yield from blocker.walk()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> Iterator[str]:
        shown_above = ", shown above" if self.repeated else ""
        yield f"{indent}{self.chain.id} ({self.chain.type}): {self.chain.status}{shown_above}"
        for blocker in self.blockers:
            yield from blocker._lines(f"{indent}  ")
        if self.incomplete:
            yield f"{indent}  ... and more"


@dataclass(slots=True)
class Growing:
    """A chain of a tree that is being read."""

    chain: Any
    waiting_job_id: str | None = None
    blockers: list[Growing] = field(default_factory=list)
    repeated: bool = False
    incomplete: bool = False

    def tree(self) -> ChainTree[Any]:
        """Return what was read."""
        blockers = tuple(one.tree() for one in self.blockers)
        return ChainTree(self.chain, self.waiting_job_id, blockers, self.repeated, self.incomplete)
