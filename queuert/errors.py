"""Every error that Queuert raises, in one tree.

The docstring of each class says what happened and what to do about it.

::

    QueuertError
    ├── DefinitionError                 job types or processors do not fit together
    │   ├── DuplicateJobTypeError
    │   └── BlockerMismatchError        the blockers of a job are not as declared, or as its handler asks
    ├── ConfigurationError              a setting is out of range
    ├── UnknownJobTypeError
    ├── InvalidIdentifierError          an id, key or name that cannot be stored
    ├── PayloadError                    an input or output that cannot be stored
    │   └── PayloadDecodeError          a stored one that cannot be read
    ├── ClientMiddlewareError
    ├── UndeclaredContinuationError
    ├── JobIdConflictError
    ├── NotFoundError
    │   ├── JobNotFoundError
    │   └── ChainNotFoundError
    ├── JobTypeMismatchError
    ├── InvalidCursorError
    ├── NotInStatusError                what was asked for cannot be done to a job or chain as it stands
    │   ├── ChainAlreadyClosedError
    │   ├── ChainNotRetriableError
    │   ├── JobNotTriggerableError
    │   └── BlockerReferenceError
    ├── WaitTimeoutError
    ├── ChainClosedError                the chain ended without an output
    │   ├── JobFailedError
    │   └── ChainCancelledError
    ├── AttemptError                    inside a handler
    │   ├── LeaseLostError
    │   ├── CompletionMissingError
    │   ├── CompletionMisuseError
    │   ├── BatchMismatchError
    │   └── ContextMissingError
    ├── BlockerFailedError
    ├── Unrecoverable                   raised by handlers: the job fails at once
    ├── RetryLater                      raised by handlers: it is tried again later
    ├── StateError                      the store did not do what was asked
    │   ├── StateUnavailableError
    │   ├── SchemaMissingError
    │   └── MigrationError
    ├── UnsupportedConnectionError
    ├── CapabilityMissingError          the store cannot do that
    ├── NotPicklableError
    └── ClosedError
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


class QueuertError(Exception):
    """The root: catch it to catch all that Queuert raises on purpose.

    Example::

        try:
            client.get_chain("no such chain")
        except QueuertError as error:
            print(error)
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Process pools and Spark send errors by value; the constructors take other arguments than the message.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(cls: type[QueuertError], args: tuple[object, ...], attributes: dict[str, object]) -> QueuertError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class DefinitionError(QueuertError):
    """Job types or processors do not fit together; the message names them. Raised where they are declared."""


class DuplicateJobTypeError(DefinitionError):
    """Two job types, or two processors, have one name. Rename one, or register the shared object once."""


class BlockerMismatchError(DefinitionError):
    """The chains that a job waits for are not those that its job type declares, or that its handler asks for.

    At a start nothing was written; in a worker it is a failed attempt. Give the chains in the order of ``blockers=``,
    or change the declaration.
    """


class ConfigurationError(QueuertError, ValueError):
    """A setting is out of range or contradicts another; the message names both. Raised at construction."""


class UnknownJobTypeError(QueuertError, LookupError):
    """No job type of that name is registered. Add it to the ``JobTypes`` given to the client or worker."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=3)
        notification = f"; did you mean {', '.join(map(repr, close))}?" if close else "."
        super().__init__(f"job type {name!r} is not registered{notification} Registered: {', '.join(names) or 'none'}")
        self.name = name
        self.known = tuple(names)


class InvalidIdentifierError(QueuertError, ValueError):
    """An id, key or name cannot be stored as it is; the message says which and why. Nothing was written."""


class PayloadError(QueuertError, ValueError):
    """An input or output is not a storable value of its job type. Nothing was written.

    ``path`` names the place (``input.items[3].name``) and ``reason`` what is wrong there. The value itself is not
    repeated, since it may be secret.
    """

    def __init__(self, *, job_type: str, field: str, path: str, reason: str) -> None:
        super().__init__(f"{field} of job type {job_type!r}: {path}: {reason}")
        self.job_type = job_type
        self.field = field
        self.path = path
        self.reason = reason


class PayloadDecodeError(PayloadError):
    """A stored input or output does not fit its job type's model, or cannot be read by its format.

    It was written by another version of the program, with a key that is not here, or by hand. In a worker it is a
    failed attempt like any other: mend the row, or deploy a model, format or key that reads it, and the next attempt
    goes through.
    """


class ClientMiddlewareError(QueuertError, TypeError):
    """A client middleware handed on other chains than it was given, or is none: mend it. Nothing was written."""


class UndeclaredContinuationError(QueuertError, TypeError):
    """A handler continued with a job type that its own does not declare. Add it to ``continues_with``."""


class JobIdConflictError(QueuertError, ValueError):
    """A job with an id that the caller chose exists already. Nothing of the batch was written.

    Choose another id, or read the existing chain with ``get_chain``. Rows of a bulk write share those of ``repeated``.
    """

    def __init__(self, ids: Iterable[str], *, repeated: Iterable[str] = ()) -> None:
        existing, self.repeated = tuple(ids), tuple(repeated)
        self.ids = (*existing, *(id for id in self.repeated if id not in existing))
        reported = {
            "jobs with these ids exist already": existing,
            "these ids are repeated within the write": self.repeated,
        }
        super().__init__(
            "; ".join(f"{what}: {', '.join(map(repr, some[:10]))}" for what, some in reported.items() if some)
        )


class NotFoundError(QueuertError, LookupError):
    """What was asked for is not in the store: it was never committed, or has been deleted."""

    def __init__(self, id: str) -> None:
        super().__init__(f"{self._noun} {id!r} does not exist: never committed, or deleted")
        self.id = id

    _noun = "row"


class JobNotFoundError(NotFoundError):
    """No job has this id. It was never committed, or has been deleted."""

    _noun = "job"


class ChainNotFoundError(NotFoundError):
    """No chain has this id. It was never committed, or has been deleted."""

    _noun = "chain"


class JobTypeMismatchError(QueuertError, TypeError):
    """The chain that was read is of another job type than the one that was asked for."""

    def __init__(self, chain_id: str, expected: str, actual: str) -> None:
        super().__init__(f"chain {chain_id!r} is of job type {actual!r}, not {expected!r}")
        self.chain_id = chain_id
        self.expected = expected
        self.actual = actual


class InvalidCursorError(QueuertError, ValueError):
    """A cursor is not one that this listing gave out. Begin without one."""

    def __init__(self, cursor: object) -> None:
        super().__init__(f"not a cursor of this listing: {str(cursor)[:40]!r}")
        self.cursor = cursor


class NotInStatusError(QueuertError):
    """What was asked for cannot be done to a job or chain as it stands. Nothing of the batch was written."""


class ChainAlreadyClosedError(NotInStatusError):
    """A chain that was to be completed has closed before. Read it with ``get_chain``."""

    def __init__(self, chain_id: str, status: str) -> None:
        super().__init__(f"chain {chain_id!r} is {status} already")
        self.chain_id = chain_id
        self.status = status


class ChainNotRetriableError(NotInStatusError):
    """Only failed and cancelled chains can be retried. Leave out this one."""

    def __init__(self, chain_id: str, status: str) -> None:
        super().__init__(f"chain {chain_id!r} is {status}: only failed and cancelled chains are retried")
        self.chain_id = chain_id
        self.status = status


class JobNotTriggerableError(NotInStatusError):
    """Only scheduled (and ready) jobs can be triggered. Leave out this one."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"job {job_id!r} is {status}: only scheduled jobs are triggered")
        self.job_id = job_id
        self.status = status


class BlockerReferenceError(NotInStatusError):
    """Chains that were to be deleted are blockers of jobs that would stay.

    ``references`` pairs up to 100 chain ids with the ids of the jobs that name them. Delete the chains of those jobs
    as well, in the same call, or first.
    """

    def __init__(self, references: Iterable[tuple[str, str]]) -> None:
        self.references = tuple(references)[:100]
        shown = ", ".join(f"{chain!r} by job {job!r}" for chain, job in self.references[:3])
        more = " ..." if len(self.references) > 3 else ""
        super().__init__(f"chains are named as blockers by jobs that would stay: {shown}{more}")


class WaitTimeoutError(QueuertError, TimeoutError):
    """The chains did not close in the time given. They go on: wait again, or look at a worker's log."""

    def __init__(self, open_ids: Iterable[str], timeout: float) -> None:
        self.open_ids = tuple(open_ids)
        self.timeout = timeout
        shown = ", ".join(map(repr, self.open_ids[:5])) + (" ..." if len(self.open_ids) > 5 else "")
        super().__init__(f"{len(self.open_ids)} chain(s) still open after {timeout:g} seconds: {shown}")


class ChainClosedError(QueuertError):
    """The chain ended without an output."""

    def __init__(self, chain_id: str, reason: str) -> None:
        super().__init__(f"chain {chain_id!r} {reason}")
        self.chain_id = chain_id
        self.reason = reason


class JobFailedError(ChainClosedError):
    """The chain failed: a job of it spent its attempts or its handler gave up; ``reason`` is the last error."""


class ChainCancelledError(ChainClosedError):
    """The chain was cancelled; ``reason`` says why, as far as whoever cancelled it told."""


class AttemptError(QueuertError):
    """Something went wrong between a handler and its attempt."""


class LeaseLostError(AttemptError):
    """This attempt no longer holds its job, so nothing of it may be committed.

    ``reason`` is an :class:`~queuert.AbortReason`. Let it pass: the worker drops the attempt and the job goes on
    elsewhere. Writes made in the same transaction were rolled back.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"the lease of job {job_id!r} is lost: {reason}")
        self.job_id = job_id
        self.reason = reason


class CompletionMissingError(AttemptError):
    """A ``complete()`` block ended without ``tx.finish(...)``; it was rolled back. Call ``finish`` once, last."""


class CompletionMisuseError(AttemptError):
    """A block, or ``finish()``, was used twice, inside another block, or in the wrong mode; see the message."""


class BatchMismatchError(AttemptError):
    """A batched handler did not return one outcome for each attempt, in their order. All have failed."""


class ContextMissingError(AttemptError, LookupError):
    """Nothing was set in ``attempt.context`` under this key. Add the middleware that sets it, or use ``get``."""


class BlockerFailedError(QueuertError):
    """A chain that this job waited for failed or was cancelled, and has no output; the message names it.

    The job fails without running its handler, unless that is registered with ``on_blocker_failure="run"``.
    """


class Unrecoverable(QueuertError):
    """Raise it in a handler, or in what that calls: the job fails at once, whatever attempts are left.

    As ``return attempt.fail(reason)``, from any depth. Subclasses count, and so does one in an exception group.

    Example::

        if response.status == 404:
            raise Unrecoverable(f"there is nothing at {url}")
    """


class RetryLater(QueuertError):
    """Raise it in a handler, or in what that calls: the job is tried again ``after`` seconds.

    As ``return attempt.retry(after=...)``, from any depth: the attempt counts, and when it was the last that the retry
    policy allows, the job fails with this error. ``fail_on`` and ``retry_on`` of the policy do not concern it.

    Args:
        after: seconds, or a timedelta; None takes the pause of the retry policy.
        reason: what the job's error says meanwhile.

    Raises:
        ConfigurationError: ``after`` is negative, longer than a hundred years, or no number.

    Example::

        if response.status == 429:
            raise RetryLater(after=float(response.headers["Retry-After"]), reason="too many requests")
    """

    def __init__(self, *, after: float | timedelta | None = None, reason: str = "the handler asked for it") -> None:
        super().__init__(reason)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not 0 <= seconds <= 100 * 365 * 86_400:
            raise ConfigurationError(f"a pause of {seconds} seconds: between 0 and a hundred years")
        self.after = None if seconds is None else float(seconds)
        self.reason = reason


class StateError(QueuertError):
    """The store refused a statement in a way that is not the caller's fault; the cause is attached."""


class StateUnavailableError(StateError):
    """The store cannot be reached, cut the connection, or confirmed no flush: the result of a write is unknown.

    Repeating a read or a start with ids of your own is safe. Workers do it by themselves.
    """


class SchemaMissingError(StateError):
    """The database holds no Queuert schema, or an older one. Run ``queuert migrate up``."""


class MigrationError(StateError):
    """A migration could not be run; the message says which, and what holds it up."""


class UnsupportedConnectionError(QueuertError, TypeError):
    """The object given as ``connection=`` is not a connection that this client can write on."""


class NotPicklableError(QueuertError, TypeError):
    """A client was to be sent to another process: a function for Spark's executors or a process pool mentions it.

    Make one inside the function, once for a partition; or write the DataFrame with the data source ``queuert``.
    """

    def __init__(self, kind: str) -> None:
        advice = f"make one there, once for a partition: {kind}.from_url(os.environ['QUEUERT_URL'], job_types)"
        super().__init__(f"{kind} holds connections and cannot be sent to another process: {advice}")


class CapabilityMissingError(QueuertError, NotImplementedError):
    """The store has not the capability that was asked for: see ``state.capabilities``, and which stores have it."""

    def __init__(self, capability: str, advice: str) -> None:
        super().__init__(f"this store has no {capability}: {advice}")
        self.capability = capability


class ClosedError(QueuertError, RuntimeError):
    """The client or worker was used after it was closed. Open a new one."""
