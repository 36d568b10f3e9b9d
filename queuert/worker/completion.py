"""The block of ``attempt.complete()``: the caller's writes and the job's ending in one transaction."""

from __future__ import annotations

from typing import Generic, TypeVar

from queuert.errors import CompletionMissingError, CompletionMisuseError
from queuert.outcomes import Finished, Outcome
from queuert.state import AsyncStoreTransaction, StoreTransaction
from queuert.state.adapter import Finish
from queuert.worker.blocks import AttemptBlocks, BlockRuntime, GuardedBlock, GuardedTransaction, Surroundings

R = TypeVar("R")


class Transaction(GuardedTransaction, Generic[R]):
    """An open ``complete()`` block: the connection of the transaction, and ``finish``."""

    def __init__(self, runtime: BlockRuntime, held: StoreTransaction | AsyncStoreTransaction) -> None:
        super().__init__(held)
        self._runtime = runtime
        self.finish_asked: Finish | None = None

    def finish(self, outcome: Outcome[R]) -> Finished[R]:
        """Say how the job ends: an output, or any other outcome. It is written when the block ends; return the result.

        Raises:
            CompletionMisuseError: it was called before.
            PayloadError: the output cannot be stored.
        """
        if self.finish_asked is not None:
            raise CompletionMisuseError("tx.finish was called twice")
        self.finish_asked = self._runtime.ending(outcome)
        return Finished(outcome)


class Completion(GuardedBlock[Transaction[R]]):
    """What ``attempt.complete()`` returns: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(self, runtime: BlockRuntime, blocks: AttemptBlocks, surroundings: Surroundings | None = None) -> None:
        super().__init__("complete", runtime, blocks, self._make, surroundings)
        self._transaction: Transaction[R] | None = None

    def _make(self, held: StoreTransaction | AsyncStoreTransaction) -> Transaction[R]:
        self._transaction = Transaction(self._runtime, held)
        return self._transaction

    def _finish_asked(self) -> Finish | None:
        return None if self._transaction is None else self._transaction.finish_asked

    def _missing(self) -> Exception | None:
        if self._finish_asked() is None:
            return CompletionMissingError("the complete() block ended without tx.finish(...): it was rolled back")
        return None
