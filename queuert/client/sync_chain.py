# Generated from queuert/client/async_chain.py, do not edit: see scripts/unasync.py
"""A chain in the hands of a synchronous client. ``sync_chain.py`` is generated from this module."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from queuert.attributes import Attributes
from queuert.errors import ChainCancelledError, JobFailedError
from queuert.jobs import ChainRecord, ChainStatus, JobError

if TYPE_CHECKING:
    from queuert.client.sync_client import Client

R = TypeVar("R", covariant=True)


class Chain(Generic[R]):
    """A chain that was started or read. ``R`` is what it ends with.

    It shows the chain as it was when it was last read (:meth:`refresh`, :meth:`wait`, :meth:`result` read it anew).

    Attributes:
        id: the chain's id, which is that of its first job.
        type: the name of its first job's type.
        deduplicated: the chain was there when it was asked for: its key, or its id, had been started before.

    Example::

        chain = client.start_chain(resize, Resize(url=url, width=200))
        published = chain.result(timeout=30)
    """

    def __init__(
        self,
        client: Client,
        id: str,
        type: str,
        record: ChainRecord | None = None,
        *,
        deduplicated: bool = False,
        status: ChainStatus = ChainStatus.OPEN,
    ) -> None:
        self.deduplicated = deduplicated
        self._client = client
        self._record = record
        self._status = status if record is None else record.status
        self.id = id
        self.type = type

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.id!r}, {self.type!r}, {self.status.value})"

    @property
    def status(self) -> ChainStatus:
        """Open, or closed in one of three ways, when last read, or when a start found that it was there."""
        return self._status

    @property
    def error(self) -> JobError | None:
        """The error of the chain's last job, when last read; None if it was not read since it was started."""
        return None if self._record is None else self._record.error

    @property
    def created_at(self) -> datetime | None:
        """When it was started, UTC; None if it was not read since."""
        return None if self._record is None else self._record.created_at

    @property
    def closed_at(self) -> datetime | None:
        """When it closed, UTC; None while open, and if it was not read since it was started."""
        return None if self._record is None else self._record.closed_at

    @property
    def expires_at(self) -> datetime | None:
        """When it will be gone, UTC; None while open, and where it has no end of its own."""
        return None if self._record is None else self._record.expires_at

    @property
    def attributes(self) -> Attributes:
        """What it can be found by, as text; empty if it was not read since it was started."""
        return {} if self._record is None else self._record.attributes

    @property
    def input(self) -> Any:
        """The first job's input, decoded into its model; None if the chain was not read since it was started.

        Raises:
            PayloadDecodeError: what is stored does not fit the model.
        """
        if self._record is None:
            return None
        return self._client.job_types[self.type].decode_input(self._record.input)

    def refresh(self) -> Chain[R]:
        """Read the chain anew; returns a fresh handle.

        Raises:
            ChainNotFoundError: it was deleted, or its transaction rolled back.
        """
        return self._client.get_chain(self.id)

    def wait(self, timeout: float | None = None) -> Chain[R]:
        """Wait until it is closed, however it ended; returns a fresh handle. See ``client.wait``."""
        return (self._client.wait([self], timeout=timeout))[0]

    def result(self, timeout: float | None = None) -> R:
        """Wait for the chain and return its output, in the model of the job type that completed it.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: it is still open after ``timeout`` seconds; it goes on.
            JobFailedError: it failed; the error says why.
            ChainCancelledError: it was cancelled.
            ChainNotFoundError: it was deleted, or its transaction rolled back.
            PayloadDecodeError: the stored output does not fit the model of this program's version.
        """
        chain: Chain[R] = self
        if chain._record is None or chain.status is ChainStatus.OPEN:
            chain = self.wait(timeout)
        output: R = chain._closed_output()
        return output

    def _closed_output(self) -> Any:
        record = self._record
        assert record is not None
        if record.status is ChainStatus.COMPLETED:
            return self._client.job_types.decode_output(record.tail_type, record.output or "null")
        reason = str(record.error) if record.error else "without a reason"
        if record.status is ChainStatus.FAILED:
            raise JobFailedError(self.id, f"failed: {reason}")
        raise ChainCancelledError(self.id, f"was cancelled: {reason}")
