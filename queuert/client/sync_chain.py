# Generated from queuert/client/async_chain.py, do not edit: see scripts/unasync.py
"""The handle of a chain of a sync client. ``sync_chain.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from queuert.attributes import Attributes
from queuert.errors import ChainCancelledError, JobFailedError
from queuert.job_types import JobTypes
from queuert.jobs import ChainRecord, ChainStatus, JobError

R = TypeVar("R", covariant=True)
S = TypeVar("S")


class ChainReader(Protocol):
    """What a handle needs of its client."""

    @property
    def job_types(self) -> JobTypes:
        """The job types of the client."""
        ...

    def get_chain(self, chain_id: str) -> Chain[Any]:
        """Read a chain."""
        ...

    def wait(self, chains: Iterable[Chain[S]], *, timeout: float | None = None) -> list[Chain[S]]:
        """Wait until chains are closed."""
        ...


class Chain(Generic[R]):
    """A handle of a chain that was started or read. ``R`` is the type of its result.

    It shows the chain as it was when it was last read; :meth:`refresh`, :meth:`wait` and :meth:`result` read it again.

    Attributes:
        id: the chain's id, which is that of its first job.
        type: the name of its first job's type.
        deduplicated: whether the start was a duplicate and returned an existing chain, of the same key or id.
        debounced: whether the first job of that chain was waiting, and got the input and due time of this start.

    Example::

        chain = client.start_chain(resize, Resize(url=url, width=200))
        published = chain.result(timeout=30)
    """

    def __init__(
        self,
        client: ChainReader,
        id: str,
        type: str,
        record: ChainRecord | None = None,
        *,
        deduplicated: bool = False,
        debounced: bool = False,
        status: ChainStatus = ChainStatus.OPEN,
    ) -> None:
        self.deduplicated = deduplicated
        self.debounced = debounced
        self._client = client
        self._record = record
        self._status = status if record is None else record.status
        self.id = id
        self.type = type

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.id!r}, {self.type!r}, {self.status.value})"

    @property
    def status(self) -> ChainStatus:
        """The status when the chain was last read, or when a start returned it."""
        return self._status

    @property
    def error(self) -> JobError | None:
        """The error of the chain's last job when it was last read; None if it was not read since its start."""
        return None if self._record is None else self._record.error

    @property
    def created_at(self) -> datetime | None:
        """When the chain was started, UTC; None if it was not read since its start."""
        return None if self._record is None else self._record.created_at

    @property
    def closed_at(self) -> datetime | None:
        """When the chain closed, UTC; None while it is open, and if it was not read since its start."""
        return None if self._record is None else self._record.closed_at

    @property
    def expires_at(self) -> datetime | None:
        """When the chain will be pruned, UTC; None while it is open, if it has no TTL, and if it was not read yet."""
        return None if self._record is None else self._record.expires_at

    @property
    def attributes(self) -> Attributes:
        """The attributes of the chain, as text; empty if it was not read since its start."""
        return {} if self._record is None else self._record.attributes

    @property
    def input(self) -> Any:
        """The first job's input, decoded into its model; None if the chain was not read since its start.

        Raises:
            PayloadDecodeError: the stored input is not valid for the model.
        """
        if self._record is None:
            return None
        return self._client.job_types[self.type].decode_input(self._record.input)

    def refresh(self) -> Chain[R]:
        """Read the chain again and return a new handle.

        Raises:
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
        """
        return self._client.get_chain(self.id)

    def wait(self, timeout: float | None = None) -> Chain[R]:
        """Wait until the chain is closed, in whatever status, and return a new handle. See ``client.wait``."""
        return (self._client.wait([self], timeout=timeout))[0]

    def result(self, timeout: float | None = None) -> R:
        """Wait for the chain and return its output, in the model of the job type that completed it.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: it is still open after ``timeout`` seconds; it keeps running.
            JobFailedError: it failed; the error says why.
            ChainCancelledError: it was cancelled.
            ChainNotFoundError: it was deleted, or its transaction was rolled back.
            PayloadDecodeError: the stored output is not valid for the model in this program.
        """
        chain: Chain[R] = self
        if chain._record is None or chain.status is ChainStatus.OPEN:
            chain = (self._client.wait([self], timeout=timeout))[0]
        record = chain._record
        assert record is not None
        if record.status is ChainStatus.COMPLETED:
            output: R = self._client.job_types[record.tail_type].decode_output(record.output or "null")
            return output
        reason = str(record.error) if record.error else "without a reason"
        if record.status is ChainStatus.FAILED:
            raise JobFailedError(self.id, f"failed: {reason}")
        raise ChainCancelledError(self.id, f"was cancelled: {reason}")
