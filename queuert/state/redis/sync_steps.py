# Generated from queuert/state/redis/async_steps.py, do not edit: see scripts/unasync.py
"""Steps of jobs on Redis. ``sync_steps.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.redis import decode, encode
from queuert.state.redis.sync_base import RedisBase
from queuert.state.types import Lease, NewStep, StepRecord


class RedisSteps(RedisBase):
    """``record_step`` and ``get_steps``."""

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        [recorded] = decode.steps(self._commit("record_step", encode.step(lease, step)), step.number)
        return recorded

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        return decode.steps(self._run("get_steps", encode.plain([job_id])), 1)
