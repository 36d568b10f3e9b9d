# Generated from queuert/state/async_registry.py, do not edit: see scripts/unasync.py
"""The operations of a store on its workers. ``sync_registry.py`` is generated from this module."""

from __future__ import annotations

from typing import Protocol

from queuert.workers import WorkerBeat, WorkerRecord


class RegistryStore(Protocol):
    """Who is at work. For eyes only: no other operation may depend on what is here."""

    def beat_worker(self, beat: WorkerBeat, ttl: float) -> None:
        """Note that a worker is alive, and what it is at: it is listed for ``ttl`` seconds from now.

        Its ``started_at`` is set by the first beat, ``uptime`` seconds before now, and kept by those that follow; its
        ``seen_at`` is now. Workers whose time is over are forgotten by the way; one of them that beats again is there
        again.
        """
        ...

    def forget_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped. One that is not there is no error."""
        ...

    def list_workers(self) -> list[WorkerRecord]:
        """The workers whose last beat is not older than its ttl, the longest running first, then by id."""
        ...
