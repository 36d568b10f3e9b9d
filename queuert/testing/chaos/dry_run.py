"""Checks before a run whether a workload can take part: it creates each handler and each start once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queuert.errors import ConfigurationError, QueuertError
from queuert.job_types import JobTypes
from queuert.new_chain import NewChain, new_job
from queuert.testing.chaos.plan import Plan
from queuert.testing.chaos.workload import Workload, custom_start, failed, job_types_of
from queuert.worker.processors import Processor, merged

_LONGEST = 600.0


@dataclass(frozen=True)
class Rehearsal:
    """What the dry run learned about a workload."""

    timeout: float = 0.0
    """Seconds in which none of its jobs need end although all is well: a lease and the longest pause before a retry, or
    ten minutes."""
    repeats: int = 0
    """The number of starts that may begin no chain, because an open chain has the same deduplication key."""


def rehearse(workload: Workload, plan: Plan) -> Rehearsal:
    """Create the handlers, and every start of the plan.

    Raises:
        ConfigurationError: one of them cannot be made, or is not valid; the message says why.
    """
    try:
        handled, job_types = merged(workload.processors()), job_types_of(workload)
    except QueuertError as error:
        raise ConfigurationError(f"the processors of the workload are invalid: {error}") from error
    except Exception as error:
        raise failed("calling the workload's processors", error) from error
    keys: list[tuple[str, str]] = []
    for op in (op for ops in plan.ops for op in ops if op.how == "custom"):
        made = _made(workload, op.ids[0], op.number, handled, job_types)
        if made.deduplication is not None:
            keys.append((made.job_type.name, made.deduplication.key))
    timeout = max(one.lease.seconds + one.retry.max_delay for one in handled.values())
    return Rehearsal(min(timeout, _LONGEST), len(keys) - len(set(keys)))


def _made(
    workload: Workload, id: str, number: int, handled: Mapping[str, Processor], job_types: JobTypes
) -> NewChain[Any]:
    try:
        made = custom_start(workload, id, number)
        new_job(job_types, made)
    except QueuertError as error:
        raise ConfigurationError(f"start {number} of the workload is invalid: {error}") from error
    except Exception as error:
        raise failed(f"calling the workload's start, number {number},", error) from error
    if made.job_type.name not in handled:
        raise ConfigurationError(
            f"start {number} of the workload has the job type {made.job_type.name!r}: add a handler to its processors"
        )
    return made
