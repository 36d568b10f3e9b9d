"""What others are to be told of what was done from outside: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from queuert.jobs import ChainStatus, JobStatus
from queuert.notify.adapter import Topic
from queuert.state.types import DeleteResult, Intervention, StartedJob, TriggeredJob

Hints: TypeAlias = Mapping[Topic, Sequence[str]]
"""What others are to be told."""


def start_hints(jobs: Sequence[StartedJob]) -> Hints:
    """What others are to be told of jobs that were started."""
    return {Topic.JOBS: sorted({job.type for job in jobs if not job.existing})}


def intervention_hints(results: Sequence[Intervention]) -> Hints:
    """What others are to be told of interventions."""
    written = [one for one in results if one.written]
    return {
        Topic.JOBS: sorted({type for one in written for type in one.readied}),
        Topic.CHAINS: [one.chain_id for one in written if one.status is not ChainStatus.OPEN],
        Topic.LEASES: [one.job_id for one in written if one.met is JobStatus.RUNNING],
    }


def trigger_hints(jobs: Sequence[TriggeredJob]) -> Hints:
    """What others are to be told of jobs that were made due."""
    return {Topic.JOBS: sorted({job.type for job in jobs})}


def delete_hints(result: DeleteResult) -> Hints:
    """What others are to be told of chains that are gone: who waits for one looks, and does not find it."""
    return {Topic.CHAINS: result.chain_ids, Topic.LEASES: result.running_job_ids}
