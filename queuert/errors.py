"""The errors of the core, in one tree. Spark, webhooks, embedded servers and the command line add their own.

The docstring of each class says what happened and what to do about it.

::

    QueuertError
    ├── DefinitionError                 job types or processors contradict each other
    │   ├── DuplicateJobTypeError
    │   ├── HandlerSignatureError       a function cannot be the handler of its job type
    │   └── BlockerMismatchError        the blockers of a job differ from their declaration
    ├── ConfigurationError              a setting is out of range
    │   └── ScheduleOwnerError
    ├── UnknownJobTypeError
    ├── InvalidIdentifierError          an id, key or name that cannot be stored
    ├── PayloadError                    an input or output that cannot be stored
    │   └── PayloadDecodeError          a stored one that cannot be read
    ├── CodecError                      raised by serialisers and codecs of payloads
    ├── ClientMiddlewareError
    ├── UndeclaredContinuationError
    ├── JobIdConflictError
    ├── NotFoundError
    │   ├── JobNotFoundError
    │   ├── ChainNotFoundError
    │   └── ScheduleNotFoundError
    ├── JobTypeMismatchError
    ├── InvalidCursorError
    ├── NotInStatusError                the status of a job or chain does not allow the operation
    │   ├── ChainAlreadyClosedError
    │   ├── ChainNotRetriableError
    │   ├── JobNotTriggerableError
    │   ├── BlockerReferenceError
    │   └── ScheduleOverlapError
    ├── WaitTimeoutError
    ├── ChainNotReadError               a handle does not know this of its chain yet
    ├── ChainClosedError                the chain closed without an output
    │   ├── JobFailedError
    │   └── ChainCancelledError
    ├── AttemptError                    inside a handler
    │   ├── LeaseLostError
    │   ├── CompletionMissingError
    │   ├── CompletionMisuseError
    │   ├── StepMismatchError           the code has changed since an earlier attempt recorded its steps
    │   ├── StepMisuseError
    │   ├── StepLimitError
    │   ├── BatchMismatchError
    │   ├── BatchInterruptedError       another attempt of the call has lost its lease
    │   ├── HandlerCallError            the handler could not be called with its attempt
    │   └── ContextMissingError
    ├── EventTimeoutError               no event was sent to the chain in time
    ├── EventLimitError                 a chain keeps too many events that no job has taken
    ├── BlockerFailedError
    ├── Unrecoverable                   raised by handlers: the job fails at once
    ├── RetryLater                      raised by handlers: the job is retried later
    ├── StateError                      the store refused or failed to execute an operation
    │   ├── StateUnavailableError
    │   ├── SchemaMissingError
    │   ├── UnsuitableServerError       the server is too old, or its settings may lose jobs
    │   ├── MigrationError
    │   ├── RightMissingError           the login has no role that may do this
    │   └── DatabaseMovedError          transaction numbers of another cluster: run queuert migrate adopt
    ├── EventsLostError                 retention or a failover removed events that were not read yet
    ├── UnsupportedConnectionError
    ├── CapabilityMissingError          the store does not support the operation
    ├── NotPicklableError
    ├── LifespanError                   the lifespan of processors could not be entered
    ├── RunningEventLoopError           worker.run() was called where an event loop runs
    └── ClosedError

There is one warning, :class:`DefinitionWarning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from queuert.jobs import ChainState


class ErrorKind(StrEnum):
    """What an error asks of who gets it. The exit codes of commands and the statuses of the HTTP interface follow it.

    >>> ChainNotFoundError.kind
    <ErrorKind.NOT_FOUND: 'not_found'>
    """

    USAGE = "usage"
    """What was passed, set or defined is wrong: correct it. Exit code 2, status 422 (a cursor 400)."""
    NOT_FOUND = "not_found"
    """There is no such chain, job or schedule. Exit code 1, status 404."""
    CONFLICT = "conflict"
    """What is stored does not allow it: read it again, and decide. Exit code 1, status 409."""
    FORBIDDEN = "forbidden"
    """The login of the database may not do it. Exit code 1, status 403."""
    UNAVAILABLE = "unavailable"
    """A server, its tables or a package is missing: repeat it when it is there. Exit code 3, status 503."""
    UNSUPPORTED = "unsupported"
    """The store cannot do it. Exit code 1, status 501."""
    TIMEOUT = "timeout"
    """It has not happened in time; it still may. Exit code 1, status 504."""
    FAILED = "failed"
    """Anything else. Exit code 1, status 500."""


class QueuertError(Exception):
    """Base class of all errors that Queuert raises on purpose.

    Example::

        try:
            client.get_chain("no such chain")
        except QueuertError as error:
            print(error.kind, error)
    """

    kind: ClassVar[ErrorKind] = ErrorKind.FAILED
    """What it asks of who gets it."""

    def __reduce__(self) -> tuple[object, ...]:
        # Process pools and Spark pickle errors, and the constructors do not take the message as their argument.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(cls: type[QueuertError], args: tuple[object, ...], attributes: dict[str, object]) -> QueuertError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class DefinitionError(QueuertError):
    """Job types or processors contradict each other; the message names them. Raised where they are declared."""

    kind = ErrorKind.USAGE


class DuplicateJobTypeError(DefinitionError):
    """Two job types, or two processors, have the same name. Rename one, or register the shared object once."""


class HandlerSignatureError(DefinitionError):
    """A function cannot be the handler of its job type; the message says which function, and what it must be.

    Raised where it is registered. A handler takes one argument, the attempt (a batched one a list of attempts), and
    returns an outcome. Annotations that contradict the job type are rejected as well.
    """


class BlockerMismatchError(DefinitionError):
    """The blockers of a job differ from those that its job type declares, or that its handler reads.

    When a chain is started, nothing was written; in a worker, the attempt fails. Pass the chains in the order of
    ``blockers=``, or change the declaration.
    """


class ConfigurationError(QueuertError, ValueError):
    """A setting is out of range or contradicts another; the message names both. Raised at construction."""

    kind = ErrorKind.USAGE


class ScheduleOwnerError(ConfigurationError):
    """A schedule of this name belongs to another owner, whose it remains.

    Give the new schedule another name; or delete the stored one first, with ``client.delete_schedules`` or ``queuert
    schedules delete``.
    """

    def __init__(self, name: str, owner: str | None, given: str | None) -> None:
        def text(one: str | None) -> str:
            return "no owner" if one is None else f"the owner {one!r}"

        super().__init__(
            f"schedule {name!r} must be stored by {text(owner)}, to which it belongs, got {text(given)}: choose "
            "another name, or delete it first (queuert schedules delete)"
        )
        self.name = name
        self.owner = owner
        self.given = given


class UnknownJobTypeError(QueuertError, LookupError):
    """No job type of this name is registered. Add it to the ``JobTypes`` of the client or worker."""

    kind = ErrorKind.USAGE

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=3)
        suggestion = f"; did you mean {', '.join(map(repr, close))}?" if close else "."
        super().__init__(f"job type {name!r} is not registered{suggestion} Registered: {', '.join(names) or 'none'}")
        self.name = name
        self.known = tuple(names)


class InvalidIdentifierError(QueuertError, ValueError):
    """An id, key or name cannot be stored; the message says which one and why. Nothing was written."""

    kind = ErrorKind.USAGE


class PayloadError(QueuertError, ValueError):
    """An input or output is not a valid, storable value of its job type. Nothing was written.

    ``path`` says where the problem is (``input.items[3].name``) and ``reason`` what it is. The message does not contain
    the value, which may be secret.
    """

    kind = ErrorKind.USAGE

    def __init__(self, *, job_type: str, field: str, path: str, reason: str) -> None:
        super().__init__(f"{field} of job type {job_type!r}: {path}: {reason}")
        self.job_type = job_type
        self.field = field
        self.path = path
        self.reason = reason


class PayloadDecodeError(PayloadError):
    """A stored input or output is not valid for its job type's model, or its format cannot read it.

    Another version of the program wrote it, it was encrypted with a key that this program does not have, or the row was
    edited by hand. In a worker the attempt fails and is retried: correct the row, or deploy a model, format or key that
    reads it.
    """

    kind = ErrorKind.FAILED


class CodecError(QueuertError, ValueError):
    """A serialiser or codec cannot write or read a payload: raise it with a reason that does not repeat the payload.

    Callers see a ``PayloadError`` or ``PayloadDecodeError`` with this reason. If it raises another exception, they see
    only the name of its class.
    """


class ClientMiddlewareError(QueuertError, TypeError):
    """A client middleware did not yield the chains it received, or is not a context manager. Nothing was written.

    The message says what it did. Correct the middleware.
    """

    kind = ErrorKind.USAGE


class UndeclaredContinuationError(QueuertError, TypeError):
    """A chain was continued with a job type that is not declared. Add it to ``continues_with``."""

    kind = ErrorKind.USAGE


class JobIdConflictError(QueuertError, ValueError):
    """A job with an id that the caller chose exists already. Nothing of the batch was written.

    Choose another id, or read the existing chain with ``get_chain``. ``ids`` names the conflicting ids, and
    ``repeated`` those of them that occur more than once among the rows of a bulk write.
    """

    kind = ErrorKind.CONFLICT

    def __init__(self, ids: Iterable[str], *, repeated: Iterable[str] = ()) -> None:
        existing, self.repeated = tuple(ids), tuple(repeated)
        self.ids = (*existing, *(id for id in self.repeated if id not in existing))
        reported = {
            "jobs with these ids exist already": existing,
            "these ids occur more than once in the write": self.repeated,
        }
        super().__init__(
            "; ".join(f"{what}: {', '.join(map(repr, some[:10]))}" for what, some in reported.items() if some)
        )


class NotFoundError(QueuertError, LookupError):
    """The job or chain is not in the store: it was never committed, or it was deleted.

    ``id`` names it. ``ids`` begins with that. A call that cancels, retries or deletes many chains, or changes what they
    wait with, names there all that it did not find.
    """

    kind = ErrorKind.NOT_FOUND

    def __init__(self, id: str, message: str | None = None, *, ids: Iterable[str] = ()) -> None:
        super().__init__(message or f"{self._noun} {id!r} does not exist: it was never committed, or it was deleted")
        self.id = id
        self.ids = tuple(dict.fromkeys((id, *ids)))

    _noun = "row"


class JobNotFoundError(NotFoundError):
    """No job has this id: it was never committed, or it was deleted."""

    _noun = "job"


class ChainNotFoundError(NotFoundError):
    """No chain has this id: it was never committed, or it was deleted."""

    _noun = "chain"


class ScheduleNotFoundError(NotFoundError):
    """No schedule has this name. ``client.list_schedules`` returns those that exist."""

    _noun = "schedule"


class JobTypeMismatchError(QueuertError, TypeError):
    """The job type of a chain, or of its last job, is not the expected one. Pass the right job type, or none."""

    kind = ErrorKind.CONFLICT

    def __init__(self, chain_id: str, expected: str, actual: str, *, of_last_job: bool = False) -> None:
        if of_last_job:
            message = (
                f"chain {chain_id!r} must be at a job of type {expected!r}, and is at one of type {actual!r}: "
                "it has gone on meanwhile, or has not come to it yet"
            )
        else:
            message = f"chain {chain_id!r} is of job type {actual!r}, not {expected!r}"
        super().__init__(message)
        self.chain_id = chain_id
        self.expected = expected
        self.actual = actual


class InvalidCursorError(QueuertError, ValueError):
    """A cursor was not returned by this listing. Start again without a cursor."""

    kind = ErrorKind.USAGE

    def __init__(self, cursor: object, expected: str = "cursor must be a next_cursor of this listing") -> None:
        super().__init__(f"{expected}, got {str(cursor)[:40]!r}; start again without one")
        self.cursor = cursor


class NotInStatusError(QueuertError):
    """The status of a job or chain does not allow the operation. Nothing of the batch was written."""

    kind = ErrorKind.CONFLICT


class ChainAlreadyClosedError(NotInStatusError):
    """A chain could not be completed, continued or sent an event, because it is closed. Read it with ``get_chain``."""

    def __init__(self, chain_id: str, status: str) -> None:
        super().__init__(f"chain {chain_id!r} is already {status}")
        self.chain_id = chain_id
        self.status = status


class ChainNotRetriableError(NotInStatusError):
    """Only failed and cancelled chains can be retried. Leave this chain out.

    ``chain_id`` and ``status`` are those of one. ``chain_ids`` begins with it, and names all chains of the call that
    cannot be retried.
    """

    def __init__(self, chain_id: str, status: str, *, chain_ids: Iterable[str] = ()) -> None:
        super().__init__(f"chain {chain_id!r} must be failed or cancelled to be retried, but it is {status}")
        self.chain_id = chain_id
        self.chain_ids = tuple(dict.fromkeys((chain_id, *chain_ids)))
        self.status = status


class JobNotTriggerableError(NotInStatusError):
    """Only scheduled (and ready) jobs can be triggered. Leave this job out."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"job {job_id!r} must be scheduled to be triggered, but it is {status}")
        self.job_id = job_id
        self.status = status


class BlockerReferenceError(NotInStatusError):
    """Chains cannot be deleted, because they are blockers of jobs that would remain.

    ``references`` pairs up to 100 chain ids with the ids of the jobs that wait for them. Delete the chains of those
    jobs first, or in the same call. ``chain_ids`` names all chains of the call that cannot be deleted.
    """

    def __init__(self, references: Iterable[tuple[str, str]]) -> None:
        found = tuple(references)
        self.references = found[:100]
        self.chain_ids = tuple(dict.fromkeys(chain for chain, _ in found))
        shown = ", ".join(f"{chain!r} by job {job!r}" for chain, job in self.references[:3])
        more = " ..." if len(self.references) > 3 else ""
        super().__init__(
            f"chains cannot be deleted while they are blockers of other jobs: {shown}{more}; "
            "delete the chains of those jobs too"
        )


class ScheduleOverlapError(NotInStatusError):
    """The chain that a schedule started last is open, and its ``overlap`` is "cancel": nothing was started.

    Stores raise it; a worker cancels the chain, whose id is ``chain_id``, and fires the tick again.
    """

    def __init__(self, schedule: str, chain_id: str) -> None:
        super().__init__(
            f"the last chain of schedule {schedule!r} must be closed before another is started, got {chain_id!r}, "
            "which is open: cancel it, and fire the tick again"
        )
        self.schedule = schedule
        self.chain_id = chain_id


SHOWN_CHAINS = 5
"""Of how many chains the message of a WaitTimeoutError says where they are."""

EXPLAINED_CHAINS = 3
"""Of how many chains it says why."""


class WaitTimeoutError(QueuertError, TimeoutError):
    """The chains did not close within the timeout. They keep running: wait again, or read a worker's log.

    ``open_ids`` has the ids of the chains that are open. ``states`` says of the first five of them where they are: the
    status of their last jobs, their attempts and last errors. It is empty if the store could not be reached.
    ``reasons`` says of the first three, by their ids, what ``client.explain`` says of their last jobs, and of one chain
    that holds them, if they wait for others. It is empty if that could not be read, if the timeout was 0, and for a
    watch.
    """

    kind = ErrorKind.TIMEOUT

    def __init__(
        self,
        open_ids: Iterable[str],
        timeout: float,
        states: Iterable[ChainState] = (),
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        self.open_ids = tuple(open_ids)
        self.timeout = timeout
        self.states = tuple(states)
        self.reasons = dict(reasons or {})
        known = {state.id: f"{state.id!r} ({state})" for state in self.states}
        shown = ", ".join(known.get(id, repr(id)) for id in self.open_ids[:SHOWN_CHAINS])
        more = " ..." if len(self.open_ids) > SHOWN_CHAINS else ""
        why = "".join(f"\n  {id}: {reason}" for id, reason in self.reasons.items())
        super().__init__(f"{len(self.open_ids)} chain(s) are still open after {timeout:g} seconds: {shown}{more}{why}")


class ChainNotReadError(QueuertError, RuntimeError):
    """The start of a handle was a duplicate, so the handle does not know this of the existing chain. Read the chain
    first: ``refresh()``, ``wait()`` and ``result()`` do.
    """

    def __init__(self, chain_id: str, wanted: str) -> None:
        super().__init__(
            f"the start of chain {chain_id!r} was a duplicate: call refresh() of the handle before reading its {wanted}"
        )
        self.chain_id = chain_id


class ChainClosedError(QueuertError):
    """The chain closed without an output."""

    kind = ErrorKind.CONFLICT

    def __init__(self, chain_id: str, reason: str) -> None:
        super().__init__(f"chain {chain_id!r} {reason}")
        self.chain_id = chain_id
        self.reason = reason


class JobFailedError(ChainClosedError):
    """The chain failed: a job used up its attempts, or its handler gave up. ``reason`` is the last error."""


class ChainCancelledError(ChainClosedError):
    """The chain was cancelled; ``reason`` is the reason that was given for it."""


class AttemptError(QueuertError):
    """A handler used its attempt wrongly, or the attempt lost its lease."""


class LeaseLostError(AttemptError):
    """This attempt has lost the lease of its job, so it must not commit anything.

    ``reason`` is an :class:`~queuert.jobs.AbortReason`. Do not catch it: the worker drops the attempt, and another
    attempt runs the job if it is still to be done. Writes in the same transaction were rolled back.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"the lease of job {job_id!r} is lost: {reason}")
        self.job_id = job_id
        self.reason = reason


class BatchInterruptedError(AttemptError):
    """The call of a batched handler ended because another of its attempts has lost its lease.

    This one has not failed: its job is due again at once, and the attempt does not count. Middlewares get this error;
    there is nothing to do.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the batched call has ended: the lease of its job {job_id!r} is lost; this job is run again")
        self.job_id = job_id


class CompletionMissingError(AttemptError):
    """A ``complete()`` block ended without ``tx.finish(...)`` and was rolled back. Call ``finish`` once, last."""


class CompletionMisuseError(AttemptError):
    """A block, or ``finish()``, was used twice, inside another block, or in the wrong mode; or an attempt was used in a
    process that its handler forked. See the message."""


class StepMismatchError(AttemptError):
    """A step has another name than the one that an earlier attempt recorded as this step: the code has changed.

    The attempt failed before the step was called, and the job is not retried. Deploy code that calls the recorded steps
    in their order, new ones after them; then retry the chain, which continues after its recorded steps. Or start a new
    chain.
    """

    def __init__(self, job_id: str, number: int, recorded: str, called: str) -> None:
        super().__init__(
            f"step {number} of job {job_id!r} must be {recorded!r}, which an earlier attempt recorded, got {called!r}: "
            "call recorded steps in their order, and new ones after them"
        )
        self.job_id = job_id
        self.number = number
        self.recorded = recorded
        self.called = called


class StepMisuseError(AttemptError):
    """A step was called inside another one or inside a block, with a name that was used before, or in the wrong mode;
    or what a method of the attempt returned was never awaited. See the message."""


class StepLimitError(AttemptError):
    """A job has too many steps, or too large results of steps; the message says which limit. Split it into a chain."""


class EventTimeoutError(QueuertError, TimeoutError):
    """No event was sent to the chain of a job within the timeout of ``attempt.wait_for_event``.

    The timeout is recorded as the result of the step: later attempts of the job raise it again at the same place. Catch
    it, and return another outcome. An event that is sent later is kept for a further wait.
    """

    kind = ErrorKind.TIMEOUT

    def __init__(self, event: str) -> None:
        super().__init__(
            f"no event {event!r} was sent to the chain in time: catch EventTimeoutError and return another outcome"
        )
        self.event = event


class EventLimitError(QueuertError):
    """A chain keeps too many events that no job has taken, or too large ones; the message says which limit.

    Send it again when the job of the chain has taken some. The event was not sent.
    """

    kind = ErrorKind.CONFLICT

    def __init__(self, chain_id: str, limit: str) -> None:
        super().__init__(
            f"chain {chain_id!r} must keep at most {limit} that its jobs have not taken, and the event would be more: "
            "send it when some are taken"
        )
        self.chain_id = chain_id
        self.limit = limit


class BatchMismatchError(AttemptError):
    """A batched handler did not return one outcome for each attempt, in order. All attempts of the batch failed."""


class HandlerCallError(AttemptError, TypeError):
    """A handler could not be called with its attempt, so it was not entered; ``__cause__`` says why. Correct it."""


class ContextMissingError(AttemptError, LookupError):
    """``attempt.context`` has no value for this key. Add the middleware that sets it, or use ``get``."""


class BlockerFailedError(QueuertError):
    """A blocker of this job failed or was cancelled, and has no output; the second line of the message has its id.

    The job fails without running its handler, unless the handler is registered with ``on_blocker_failure="run"``.
    """


class Unrecoverable(QueuertError):
    """Raise it in a handler, or in a function that it calls, to fail the job at once, whatever attempts are left.

    It does what ``return attempt.fail(reason)`` does, from any depth. Subclasses work as well, and so does one inside
    an exception group.

    Example::

        if response.status == 404:
            raise Unrecoverable(f"there is nothing at {url}")
    """


class RetryLater(QueuertError):
    """Raise it in a handler, or in a function that it calls, to retry the job ``after`` seconds.

    It does what ``return attempt.retry(after=...)`` does, from any depth: the attempt counts, and if it was the last
    that the retry policy allows, the job fails with this error. ``fail_on`` and ``retry_on`` of the policy do not apply
    to it.

    Args:
        after: seconds or a timedelta; None takes the delay of the retry policy.
        reason: the message of the job's error until the next attempt.

    Raises:
        ConfigurationError: ``after`` is negative or longer than a hundred years.

    Example::

        if response.status == 429:
            raise RetryLater(after=float(response.headers["Retry-After"]), reason="too many requests")
    """

    def __init__(self, *, after: float | timedelta | None = None, reason: str = "the handler asked for it") -> None:
        super().__init__(reason)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not 0 <= seconds <= 100 * 365 * 86_400:
            raise ConfigurationError(f"after must be between 0 seconds and a hundred years, got {seconds} s")
        self.after = None if seconds is None else float(seconds)
        self.reason = reason


class StateError(QueuertError):
    """The store refused or failed to execute a statement, through no fault of the caller; see ``__cause__``."""

    remedy: str | None = None
    """What to do about it, with which the message ends; None if it is not known apart from the message."""


class StateUnavailableError(StateError):
    """The store cannot be reached, closed the connection, or did not confirm that a write was flushed.

    It is unknown whether a write took effect. Repeating a read, or a start with ids of your own, is safe. Workers retry
    by themselves.
    """

    kind = ErrorKind.UNAVAILABLE


class SchemaMissingError(StateError):
    """The database has no Queuert schema, or an older one. Run ``queuert migrate up``."""

    kind = ErrorKind.UNAVAILABLE


class UnsuitableServerError(StateError):
    """The server is too old, its settings may lose jobs, or it cannot do what the store was asked for.

    Raised when a store is opened; the message says what must be set, and to what, by whoever runs the server.
    """

    kind = ErrorKind.UNAVAILABLE


class MigrationError(StateError):
    """A migration failed or could not start; the message says which one and why."""


class RightMissingError(StateError):
    """The login of the database may not do this; the message says which right it lacks, and which roles have it.

    Nothing was written. On Postgres, grant the login one of the ``roles``, as the owner of the schema. If it has one of
    them, the rights of this version were not granted yet: run ``queuert migrate roles --apply``. ``docs/security.md``
    has a table of what each role may do. On Redis, give the user the rights that it lists: ``ACL SETUSER``.
    """

    kind = ErrorKind.FORBIDDEN

    def __init__(
        self,
        reason: str,
        operation: str | None = None,
        roles: Iterable[str] | None = None,
        *,
        remedy: str | None = None,
    ) -> None:
        names = None if roles is None else tuple(roles)
        needs = f"{operation or 'this'} needs a right that this login does not have"
        super().__init__(f"{needs} ({reason}): {remedy or _advice(names)}")
        self.reason = reason
        self.operation = operation
        self.roles = names
        self.remedy = remedy

    reason: str
    """What the server has refused."""
    operation: str | None
    """The method of the client, such as ``cancel_chains``, or the command; None if it is not known."""
    roles: tuple[str, ...] | None
    """The roles that may do it, by their usual names, the one that may least first. It is empty if only the owner of
    the tables may, and None if it is not known."""
    remedy: str | None
    """What to do about it on a store that has no roles; None on Postgres."""


def _advice(roles: tuple[str, ...] | None) -> str:
    if roles is None:
        return "docs/security.md says which role may; GRANT that TO LOGIN"
    if not roles:
        return "use the login that owns the tables"
    others = f" (or {', '.join(roles[1:])})" if roles[1:] else ""
    return f"as the owner, GRANT {roles[0]} TO LOGIN{others}; if it has that, run queuert migrate roles --apply"


class DatabaseMovedError(StateError):
    """The database was restored or replicated into another cluster, whose transaction numbers start anew.

    The numbers in the event log and of closed chains are not comparable there, so readers would miss events. Jobs are
    not affected. Stop the workers and run ``queuert migrate adopt``.
    """


class EventsLostError(QueuertError):
    """Events that a reader has not read yet are lost, or may be; the message says why.

    Retention dropped them, or a failover (or a restore) lost transactions: the event that the reader read last is no
    longer in the log, and new events may have lower numbers. Start again without a cursor to read all that the log has;
    or continue from ``cursor`` and miss the events that the message names. Start a Spark stream with a new checkpoint,
    or continue it with the option ``failOnDataLoss=false``; repeat a batch read, which then reads what is left.
    """

    cursor: str | None = None
    """The cursor from which ``list_events`` can continue. After a failover it is the same number on the new timeline,
    so new events with lower numbers are left out. None if a stream or a DataFrame was read."""


class UnsupportedConnectionError(QueuertError, TypeError):
    """The object passed as ``connection=`` is not a connection that this client can write on, or leads to another
    database than the client's; or ``tx.connection`` was read on Redis. Nothing was written; the message says what to
    use. In a handler it is a programming error, which is not retried."""

    kind = ErrorKind.USAGE


class NotPicklableError(QueuertError, TypeError):
    """A client cannot be pickled: a function that runs in another process, such as Spark's executors, refers to it.

    Create a client inside the function, once per partition; or write the DataFrame with the data source ``queuert``.
    """

    kind = ErrorKind.USAGE

    def __init__(self, kind: str) -> None:
        advice = f"create one there, once per partition: {kind}.from_url(os.environ['QUEUERT_URL'], job_types)"
        super().__init__(f"{kind} holds connections and cannot be sent to another process: {advice}")


class CapabilityMissingError(QueuertError, NotImplementedError):
    """The store does not support the operation; the message says which stores do. See ``state.capabilities``.

    In a handler it is a programming error, which is not retried.
    """

    kind = ErrorKind.UNSUPPORTED

    def __init__(self, capability: str, advice: str) -> None:
        super().__init__(f"this store does not support {capability}: {advice}")
        self.capability = capability


class LifespanError(QueuertError):
    """The lifespan of processors could not be entered, so the worker did not start; ``__cause__`` says why.

    Nothing was claimed. In a child process of ``executor="process"`` the attempt fails instead, and is retried.
    """


class RunningEventLoopError(QueuertError, RuntimeError):
    """``worker.run()`` was called where an event loop runs already, as in a notebook: use ``await worker.start()``. Or
    ``worker.stop()`` was awaited in another event loop than the worker's: use ``worker.request_stop()``."""

    kind = ErrorKind.USAGE


class ClosedError(QueuertError, RuntimeError):
    """The client or worker was used after it was closed. Create a new one."""


class DefinitionWarning(UserWarning):
    """A job type is defined so that some of its values will be refused: the message says which, and what to change.

    Given where the job type is made, as a warning of Python's: ``-W error::queuert.errors.DefinitionWarning`` makes it
    an error, and pytest lists it.
    """
