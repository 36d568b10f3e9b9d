"""The work of a run: its job types, and how handlers of your own take part in a run."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from queuert.errors import ConfigurationError
from queuert.job_types import JobType, JobTypes
from queuert.limits import Limits, Rate
from queuert.new_chain import NewChain
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.worker.processors import Processors

LEASE = LeasePolicy(seconds=1.0, renew_every=0.3)
TAKEOVER = RetryPolicy(max_attempts=1_000, initial_delay=0.0, jitter=0.0, max_crashes=1_000)
"""Whatever happens to these jobs, they are retried, and at once."""
PAUSING = RetryPolicy(
    max_attempts=1_000, initial_delay=0.2, multiplier=1.5, max_delay=1.0, jitter=0.1, max_crashes=1_000
)
POISON = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)
TIDY = "tidy"
"""The order for a steady job that its worker releases unused memory."""
LOOPBACK = "127.0.0.1"
"""Where the receiver of webhooks is: no worker may send to any other place."""
CLASH = "clash"
"""The order for an attempt to continue with a job whose id exists: the store rejects that, the first time."""
POISONS = ("exit", "segfault", "kill", "memory", "hang")


class Task(BaseModel):
    """The task of a handler."""

    pause: float = 0.0
    """Seconds before it ends."""
    inside: float = 0.0
    """Seconds inside its completing transaction, after the effect is written."""
    links: int = 0
    """The number of continuations to come."""
    fails: int = 0
    """How many attempts fail first."""
    how: str = ""
    """How it fails, or kills its process."""
    ballast: str = ""
    """A text that makes the input and the output large."""
    gated: bool = False
    """Each attempt waits for a file of its own, and continues when it is cancelled."""


class Done(BaseModel):
    """The attempt that made this output."""

    attempt: int
    ballast: str = ""


effect = JobType("chaos.effect", input=Task, output=Done, continues_with="chaos.effect")
"""The handler is a coroutine with an effect in the completing transaction; its chain may continue."""
threaded = JobType("chaos.threaded", input=Task, output=Done)
"""The handler is a plain function with an effect in the completing transaction."""
plain = JobType("chaos.plain", input=Task, output=Done, continues_with="chaos.plain")
"""The handler returns its output, or a continuation."""
flaky = JobType("chaos.flaky", input=Task, output=Done)
"""The handler fails in many ways before it completes."""
blocking = JobType("chaos.blocking", input=Task, output=Done)
"""The handler blocks the event loop."""
poison = JobType("chaos.poison", input=Task, output=Done)
"""The handler ends its process, or never returns."""
fleeting = JobType("chaos.fleeting", input=Task, output=Done)
"""The chain is not kept when it has closed."""
steady = JobType("chaos.steady", input=Task, output=Done, continues_with="chaos.steady")
"""The work of the leak probes, which live through the run; no other worker handles it."""
steady_in_thread = JobType("chaos.steady_in_thread", input=Task, output=Done)
"""The same in a thread."""
limited = JobType("chaos.limited", input=Task, output=Done)
"""A type with an effect, and with a few slots for all workers together."""
keyed = JobType("chaos.keyed", input=Task, output=Done)
"""A type of which one job of each key runs at a time."""
rated = JobType("chaos.rated", input=Task, output=Done)
"""A type with a rate for each key."""
LIMITS: Mapping[str, Limits] = {
    limited.name: Limits(concurrency=4), keyed.name: Limits(per_key=1), rated.name: Limits(rate=Rate(5, per=0.5)),
}  # fmt: skip
"""A worker that handles one of these does not prefetch, so only half of the workers do."""
nobody = JobType("chaos.nobody", input=Task, output=Done)
"""The type without a handler."""
JOB_TYPES = JobTypes(
    effect, threaded, plain, flaky, blocking, poison, fleeting, steady, steady_in_thread, limited, keyed, rated, nobody
)

WITH_EFFECT = frozenset(one.name for one in (effect, threaded, flaky, blocking, steady, steady_in_thread, limited))
"""Types whose jobs write an effect in the transaction that completes them."""
WITH_WEBHOOK = frozenset(one.name for one in (threaded, limited, keyed))
"""Types of whose completed chains a webhook is told."""
PATIENT = WITH_EFFECT | {plain.name, fleeting.name, keyed.name, rated.name}
"""Types that never fail for good."""


@dataclass(frozen=True)
class Workload:
    """Handlers of your own for a chaos run, beside those of the run itself.

    Name it as ``MODULE:ATTRIBUTE``, because workers and clients import it in processes of their own. The run checks the
    general invariants of these jobs too: none is lost, each has one live lease at a time, attempts are counted, chains
    are complete. It does not check the effects of your handlers: write them to tables and check these after the run.

    Args:
        processors: makes the handlers, in each worker.
        start: makes the n-th start from a random generator that is the same in every run of a seed. The run replaces
            its id. It also makes each start once before it begins, to check it, so the function should be quick.

    Example::

        workload = Workload(lambda: processors, lambda random, n: NewChain(resize, Resize(width=random.randint(1, 9))))
    """

    processors: Callable[[], Processors]
    start: Callable[[Random, int], NewChain[Any]]


def load(target: str) -> Workload:
    """Return the workload that ``MODULE:ATTRIBUTE`` names.

    Raises:
        ConfigurationError: it does not exist, importing it failed, or it has a wrong type.
    """
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"no workload {target!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise failed(f"importing {module!r}", error) from error
    if not isinstance(found, Workload):
        raise ConfigurationError(
            f"{target!r} must be a queuert.testing.chaos.Workload, got an object of type {type(found).__name__}"
        )
    return found


def failed(what: str, error: BaseException) -> ConfigurationError:
    """Return the error that the workload raised, with the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return ConfigurationError(f"{what} failed: {type(error).__name__}: {error} ({where})")


def custom_start(workload: Workload, id: str, number: int) -> NewChain[Any]:
    """Return the n-th start of a workload, with this id: the same in every process.

    Raises:
        ConfigurationError: it returned something else.
    """
    made: object = workload.start(Random(id), number)
    if not isinstance(made, NewChain):
        raise ConfigurationError(f"start {number} of the workload must return a NewChain, got {type(made).__name__}")
    made.id = id
    return made


def job_types_of(workload: Workload | None) -> JobTypes:
    """The job types of a run."""
    return JOB_TYPES if workload is None else JobTypes(JOB_TYPES, workload.processors().job_types)
