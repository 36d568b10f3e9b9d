"""The handle of a chain of an async client. ``sync_chain.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from queuert.chain_trees import ChainTree
from queuert.client.connections import AsyncConnectionLike
from queuert.client.management import CANCELLED_BY_CLIENT, Completable
from queuert.errors import ChainCancelledError, ChainNotReadError, JobFailedError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import Attributes, ChainRecord, ChainState, ChainStatus, Job, JobError
from queuert.new_chain import ChainReference
from queuert.phases import JobPhase
from queuert.state.paging import Page
from queuert.state.types import NewJob, StartedJob

R = TypeVar("R", covariant=True)
S = TypeVar("S")

_PAGE = 1_000


class AsyncChainClient(Protocol):
    """What a handle needs of its client."""

    @property
    def job_types(self) -> JobTypes:
        """The job types of the client."""
        ...

    async def get_chain(self, chain_id: str) -> AsyncChain[Any]:
        """Read a chain."""
        ...

    async def wait(self, chains: Iterable[AsyncChain[S]], *, timeout: float | None = None) -> list[AsyncChain[S]]:
        """Wait until chains are closed."""
        ...

    def watch_chain(
        self, chain: ChainReference, *, interval: float = 1.0, timeout: float | None = None
    ) -> AsyncGenerator[ChainState, None]:
        """Follow a chain until it is closed."""
        ...

    async def list_chain_jobs(
        self, chain: ChainReference, *, limit: int = 50, cursor: str | None = None, oldest_first: bool = True
    ) -> Page[Job]:
        """List the jobs of a chain."""
        ...

    async def get_phases(self, job_id: str) -> list[JobPhase]:
        """Read the phases of a job."""
        ...

    async def get_chain_tree(
        self, chain: ChainReference, *, max_depth: int = 10, max_chains: int = 1_000
    ) -> ChainTree[AsyncChain[Any]]:
        """Read a chain with the chains that it waited for."""
        ...

    async def complete_chain(
        self,
        chain: Completable[S],
        output: S,
        *,
        expecting: JobType[Any, Any] | None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> None:
        """Complete a chain."""
        ...

    async def cancel_chain(
        self, chain: ChainReference, *, reason: str = CANCELLED_BY_CLIENT, connection: AsyncConnectionLike | None = None
    ) -> bool:
        """Cancel a chain."""
        ...


class AsyncChain(Generic[R]):
    """A handle of a chain that was started or read. ``R`` is the type of its result.

    Its properties show the chain as it was when the handle last read it, and reading a property reads nothing. The
    methods :meth:`refresh`, :meth:`wait`, :meth:`result` and :meth:`watch` of the handle, and ``client.wait``, read the
    chain and update the handle; so do :meth:`complete` and :meth:`cancel`, unless they write in a transaction of yours.

    A start reads nothing either: it returns a handle of the open chain that it has written. If the start was a
    duplicate, the handle has the status and the ``created_at`` of the existing chain; its other properties raise
    ChainNotReadError until the chain is read.

    Attributes:
        id: the chain's id, which is that of its first job.
        type: the name of its first job's type.
        deduplicated: whether the start was a duplicate and returned an existing chain, of the same key or id.
        debounced: whether the first job of that chain was waiting, and got the input and due time of this start.

    Example::

        chain = await client.start_chain(resize, Resize(url=url, width=200))
        published = await chain.result(timeout=30)
        print(chain.status, chain.closed_at)
    """

    def __init__(self, client: AsyncChainClient, known: ChainRecord | StartedJob, new: NewJob | None = None) -> None:
        self._client = client
        self._known = known
        self._new = new
        """What a start has written; None if it was a duplicate, and for handles of chains that were read."""
        self.id = known.id
        self.type = known.type
        self.deduplicated = isinstance(known, StartedJob) and known.existing
        self.debounced = isinstance(known, StartedJob) and known.debounced

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.id!r}, {self.type!r}, {self.status.value})"

    # --- as it was last read ------------------------------------------------------------------------------------------

    @property
    def status(self) -> ChainStatus:
        """The status: ``open``, ``completed``, ``failed`` or ``cancelled``."""
        return self._known.chain_status if isinstance(self._known, StartedJob) else self._known.status

    @property
    def created_at(self) -> datetime:
        """When the chain was started, UTC."""
        return self._known.created_at

    @property
    def input(self) -> Any:
        """The first job's input, decoded into its model.

        Raises:
            PayloadDecodeError: the stored input is not valid for the model.
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._client.job_types[self.type].decode_input(self._record("input").input)

    @property
    def attributes(self) -> Attributes:
        """The attributes of the chain, as text.

        Raises:
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._record("attributes").attributes

    @property
    def output(self) -> R | None:
        """The chain's output, in the model of the job type that completed it; None unless the chain is completed.

        Raises:
            PayloadDecodeError: the stored output is not valid for the model in this program.
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        record = self._record("output")
        if record.status is not ChainStatus.COMPLETED:
            return None
        output: R = self._client.job_types[record.tail_type].decode_output(record.output or "null")
        return output

    @property
    def error(self) -> JobError | None:
        """Why the last attempt of the chain's last job did not complete it; None if it did, or if there was none.

        Raises:
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._record("error").error

    @property
    def closed_at(self) -> datetime | None:
        """When the chain closed, UTC; None while it is open.

        Raises:
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._record("closed_at").closed_at

    @property
    def expires_at(self) -> datetime | None:
        """When the chain will be pruned, UTC; None while it is open, and if it has no TTL.

        Raises:
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._record("expires_at").expires_at

    @property
    def stale_at(self) -> datetime | None:
        """When retention found that the closed chain is no longer kept, UTC; None if it has not.

        It will be deleted ``Keep.stale_for`` later. A retry ends that.

        Raises:
            ChainNotReadError: the start was a duplicate, and the chain was not read since.
        """
        return self._record("stale_at").stale_at

    def _record(self, wanted: str) -> ChainRecord:
        if isinstance(self._known, ChainRecord):
            return self._known
        if self._new is None:
            raise ChainNotReadError(self.id, wanted)
        return ChainRecord(
            id=self.id,
            type=self.type,
            status=ChainStatus.OPEN,
            input=self._new.input,
            output=None,
            error=None,
            tail_type=self.type,
            created_at=self._known.created_at,
            closed_at=None,
            tail_id=self.id,
            attributes=self._new.attributes or {},
        )

    def _update(self, record: ChainRecord) -> None:
        """Show the chain as this record does, from now on."""
        self._known, self._new = record, None

    # --- read ---------------------------------------------------------------------------------------------------------

    async def refresh(self) -> AsyncChain[R]:
        """Read the chain, update this handle, and return it.

        Raises:
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
        """
        self._update((await self._client.get_chain(self.id))._record("status"))
        return self

    async def wait(self, timeout: float | None = None) -> AsyncChain[R]:
        """Wait until the chain is closed, in whatever status; update this handle and return it. See ``client.wait``."""
        await self._client.wait([self], timeout=timeout)
        return self

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the chain and return its output, in the model of the job type that completed it.

        If the handle has seen that the chain is completed, nothing is read. Otherwise it is read, also if it had failed
        or was cancelled before: somebody may have retried it.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: it is still open after ``timeout`` seconds; it keeps running.
            JobFailedError: it failed; the error says why.
            ChainCancelledError: it was cancelled.
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
            PayloadDecodeError: the stored output is not valid for the model in this program.
        """
        # A completed chain stays so. A failed or cancelled one may have been retried since it was read.
        if not isinstance(self._known, ChainRecord) or self._known.status is not ChainStatus.COMPLETED:
            await self._client.wait([self], timeout=timeout)
        record = self._known
        assert isinstance(record, ChainRecord)
        if record.status is ChainStatus.COMPLETED:
            output: R = self._client.job_types[record.tail_type].decode_output(record.output or "null")
            return output
        reason = str(record.error) if record.error else "without a reason"
        if record.status is ChainStatus.FAILED:
            raise JobFailedError(self.id, f"failed: {reason}")
        raise ChainCancelledError(self.id, f"was cancelled: {reason}")

    async def watch(self, *, interval: float = 1.0, timeout: float | None = None) -> AsyncGenerator[ChainState, None]:
        """Yield where the chain is: at once, after each change, and a last time when it is closed.

        A notification tells at once that the chain has closed. Steps, attempts and progress are read every ``interval``
        seconds, without inputs and outputs; of several changes within an interval only the last one is seen. At the end
        the handle is updated.

        Args:
            interval: seconds between two reads.
            timeout: seconds; None watches until the chain is closed.

        Raises:
            WaitTimeoutError: it is still open after ``timeout`` seconds; it keeps running.
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
            ConfigurationError: ``interval`` is not above 0.

        Example::

            async for state in chain.watch():
                print(state.job_type, state.job_status, state.progress)
            print(chain.output)
        """
        async with aclosing(self._client.watch_chain(self.id, interval=interval, timeout=timeout)) as states:
            async for state in states:
                if state.status is not ChainStatus.OPEN:
                    await self.refresh()
                yield state

    async def phases(self) -> list[JobPhase]:
        """Read the phases of the chain's last job, and where each is. See ``client.get_phases``.

        Raises:
            ChainNotFoundError: the chain was deleted, or its transaction was rolled back.
        """
        return await self._client.get_phases((await self._client.get_chain(self.id))._record("phases").tail_id)

    async def jobs(self) -> list[Job]:
        """Read all jobs of the chain, in order; ``client.list_chain_jobs`` reads those of a long chain in pages."""
        jobs: list[Job] = []
        cursor: str | None = None
        while True:
            page = await self._client.list_chain_jobs(self.id, limit=_PAGE, cursor=cursor)
            jobs += page.items
            cursor = page.next_cursor
            if cursor is None:
                return jobs

    async def tree(self, *, max_depth: int = 10, max_chains: int = 1_000) -> ChainTree[AsyncChain[Any]]:
        """Read the chain with the chains that its jobs wait for or waited for, down to the leaves.

        See ``client.get_chain_tree``. It does not update the handle.
        """
        return await self._client.get_chain_tree(self.id, max_depth=max_depth, max_chains=max_chains)

    # --- change -------------------------------------------------------------------------------------------------------

    # A handle is covariant, so that one of a Published is also one of an object: a type checker then accepts any output
    # here. The client checks outputs when they are written.
    async def complete(
        self,
        output: R,  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        *,
        expecting: JobType[Any, Any] | None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> None:
        """Complete the chain with an output, instead of its last job's handler. See ``client.complete_chain``.

        The handle is updated, unless ``connection`` is given, as the completion then waits for your commit.
        """
        await self._client.complete_chain(self, output, expecting=expecting, connection=connection)
        if connection is None:
            await self.refresh()

    async def cancel(self, *, reason: str = CANCELLED_BY_CLIENT, connection: AsyncConnectionLike | None = None) -> bool:
        """Cancel the chain, and return whether this call closed it: False if it was closed already.

        The handle is updated, unless ``connection`` is given, as the cancellation then waits for your commit.

        Args:
            reason: the message of the chain's error, shortened to 2,000 characters.
            connection: a connection of yours, see ``client.start_chain``.

        Raises:
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
        """
        cancelled = await self._client.cancel_chain(self.id, reason=reason, connection=connection)
        if connection is None:
            await self.refresh()
        return cancelled
