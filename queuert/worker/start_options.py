"""What a job was started with beside what its claim returns: an attempt reads it only if its handler asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from queuert.errors import JobNotFoundError
from queuert.jobs import Attributes, ChainRecord, Job


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What a chain and its job were started with, beside what the claim returns.

    Attributes:
        attributes: the attributes of the chain, as text.
        limit_key: the key under which the per-key limits of the job type count the job.
    """

    attributes: Attributes
    limit_key: str | None


def start_options(job_id: str, chain: ChainRecord | None, job: Job | None) -> StartOptions:
    """Return the options of a start from its rows.

    Raises:
        JobNotFoundError: the job was deleted.
    """
    if chain is None or job is None:
        raise JobNotFoundError(job_id)
    return StartOptions(chain.attributes, job.limit_key)
