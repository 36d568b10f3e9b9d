"""Builds the notifications that follow operations of clients: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from queuert.jobs import ChainStatus, JobStatus
from queuert.notify.adapter import Topic
from queuert.state.types import ChainUpdate, DeleteResult, StartedJob, TriggeredJob

Notifications: TypeAlias = Mapping[Topic, Sequence[str]]
"""The keys to notify, by topic."""


def start_notifications(jobs: Sequence[StartedJob]) -> Notifications:
    """Return the notifications of jobs that were started."""
    return {Topic.JOBS: sorted({job.type for job in jobs if not job.existing})}


def update_notifications(results: Sequence[ChainUpdate]) -> Notifications:
    """Return the notifications of management operations."""
    written = [one for one in results if one.written]
    return {
        Topic.JOBS: sorted({type for one in written for type in one.due_types}),
        Topic.CHAINS: [one.chain_id for one in written if one.status is not ChainStatus.OPEN],
        Topic.LEASES: [one.job_id for one in written if one.previous_status is JobStatus.RUNNING],
    }


def trigger_notifications(jobs: Sequence[TriggeredJob]) -> Notifications:
    """Return the notifications of jobs that were made due."""
    return {Topic.JOBS: sorted({job.type for job in jobs})}


def delete_notifications(result: DeleteResult) -> Notifications:
    """Return the notifications of deleted chains, so that callers that wait for one read it and find that it was
    deleted."""
    return {Topic.CHAINS: result.chain_ids, Topic.LEASES: result.running_job_ids}
