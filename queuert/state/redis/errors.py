"""Maps errors of redis-py, and refusals of the scripts, to errors of the store contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions

from queuert.errors import (
    BlockerReferenceError,
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    EventLimitError,
    JobIdConflictError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobTypeMismatchError,
    LeaseLostError,
    QueuertError,
    RightMissingError,
    ScheduleOverlapError,
    StateError,
    StateUnavailableError,
    UnsupportedConnectionError,
)
from queuert.jobs import AbortReason
from queuert.rights import requested_operation
from queuert.state.steps import event_limit

_LOGIN = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""A login is refused. Administrators renew and correct them, and rights, while workers run."""

_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")

_REMEDY = "give the user the rights that docs/security.md lists, ACL SETUSER NAME ..."

_PASSING_ERRORS = (
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
"""Of answers for which the driver has a class, and whose prefix it drops."""

_PASSING = ("OOM", "LOADING", "BUSY", "MASTERDOWN", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MISCONF", "NOREPLICAS")
"""Prefixes of answers of a server that temporarily takes no writes: out of memory, starting, failing over."""


NO_CONNECTION = (
    "tx.connection must be read on Postgres or SQLite, got a block on Redis, which has no transaction in which a "
    "handler could write: keep jobs in Postgres or SQLite, or write on a connection of your own, so that it may "
    "be repeated"
)

NO_TRANSACTIONS = (
    "connection= was given, but jobs are kept in Redis, which takes part in no transaction of a caller's: "
    "keep them in Postgres or SQLite where they must commit with other writes"
)


def refuse_connection(connection: Any) -> None:
    """Raise if the caller passed a connection: Redis cannot join the caller's transaction.

    Raises:
        UnsupportedConnectionError: a connection was passed.
    """
    if connection is not None:
        raise UnsupportedConnectionError(NO_TRANSACTIONS)


@contextmanager
def mapped_errors(*, opening: bool = False) -> Iterator[None]:
    """Raise errors of the driver as Queuert errors, with the driver's error as the cause.

    Args:
        opening: no operation has succeeded yet, so that a refused right is no outage but a wrong setting.
    """
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise mapped(error, opening=opening) from error


def mapped(error: BaseException, *, opening: bool = False) -> QueuertError:
    """Return the contract's error for an error of the driver.

    What the server refused has not happened. If it may be right later, the error is that of an outage: the result of a
    handler waits for the server, and the handler does not run again.
    """
    message = (str(error).splitlines() or [""])[0] or type(error).__name__
    if isinstance(error, exceptions.AskError):  # And MovedError. The message is the slot and the node that has it.
        message = (
            f"the node of the cluster must have the slot of the namespace, got the answer that it is elsewhere "
            f"({message}): use an address that leads to the node that has it"
        )
        return StateError(message) if opening else StateUnavailableError(message)
    if refuses_login(error):
        advice = f"the server must accept the login, got {message!r}: check the user and the password"
        return StateUnavailableError(advice if opening else message)
    if lacks_right(error):
        return right_missing(message) if opening else StateUnavailableError(message)
    if opening and refuses_database(error):
        return ConfigurationError(
            f"the database in the Redis address must be one that the server has, got a number that it refuses "
            f"({message}): write /0, or raise databases in redis.conf; a cluster has only /0"
        )
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return StateUnavailableError(message)
    if isinstance(error, _PASSING_ERRORS) or _in_lua(message).startswith(_PASSING):
        return StateUnavailableError(message)
    return StateError(message)


def refuses_login(error: BaseException | None) -> bool:
    """Whether an error of the driver is that of a refused login."""
    return isinstance(error, _LOGIN)


def refuses_database(error: BaseException | None) -> bool:
    """Whether an error of the driver is that of a number of a database which the server does not have."""
    return isinstance(error, exceptions.ResponseError) and str(error).removeprefix("ERR ").startswith(_NO_DATABASE)


def lacks_right(error: BaseException | None) -> bool:
    """Whether an error of the driver is that of a right which the user does not have."""
    code = _in_lua(str(error))
    return isinstance(error, exceptions.NoPermissionError) or code.startswith(("NOPERM", "ACL failure in script"))


def right_missing(reason: str, remedy: str = _REMEDY) -> RightMissingError:
    """Return the error for what the rights of the user do not allow."""
    return RightMissingError(reason, requested_operation(), remedy=remedy)


def _in_lua(message: str) -> str:
    # An error of a command inside a script. Redis 6.2 puts the script and the line before the error's own code: "Error
    # running script (call to ...): @user_script:68: @user_script: 68: -OOM command not allowed".
    _, _, code = message.rpartition(": -")
    return code.removeprefix("ERR ").removeprefix("-")


def is_read_only(error: BaseException) -> bool:
    """Whether a server refused a write because it is a replica, perhaps since a recent failover."""
    return isinstance(error, exceptions.ReadOnlyError) or _in_lua(str(error)).startswith("READONLY")


def _references(stored: str) -> QueuertError:
    flat = json.loads(stored)
    return BlockerReferenceError(zip(flat[::2], flat[1::2], strict=True))


_REFUSALS: dict[str, Callable[..., QueuertError]] = {
    "chain_not_found": lambda *ids: ChainNotFoundError(ids[0], ids=ids),
    "chain_closed": ChainAlreadyClosedError,
    "event_limit": lambda chain_id, limit: EventLimitError(chain_id, event_limit(limit == "number")),
    "id_conflict": lambda *ids: JobIdConflictError(ids),
    "job_not_found": JobNotFoundError,
    "lease_lost": lambda job_id, reason: LeaseLostError(job_id, AbortReason(reason)),
    "not_retriable": lambda *texts: ChainNotRetriableError(*texts[:2], chain_ids=texts[::2]),
    "not_triggerable": JobNotTriggerableError,
    "overlap": ScheduleOverlapError,
    "referenced": _references,
    "step_exists": lambda job_id, number: StateError(f"step {number} of job {job_id!r} is not the next one"),
    "type_mismatch": JobTypeMismatchError,
}
"""The error for each refusal, from the texts that the script returns after its code."""


_REFUSED = -1
"""The number that begins a refusal, and no other answer: see ``lua/lib/01_jobs.lua``."""


def checked(answer: Any) -> Any:
    """Return the answer of a script.

    Raises:
        QueuertError: the script refused the operation; it wrote nothing.
    """
    if isinstance(answer, list) and answer and answer[0] == _REFUSED:
        code, *texts = (part.decode() for part in answer[1:])
        raise _REFUSALS[code](*texts)
    return answer
