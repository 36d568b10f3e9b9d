"""Waits until the server has flushed a write: WAITAOF after a script, in one round trip.

WAITAOF waits for the writes of its own connection, and so for all earlier ones, since the append-only file is one
sequence. But a script that finds its work done already writes nothing, and what it found may not be flushed yet. So the
client increments a generation between the two, which is always a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from queuert.errors import StateUnavailableError
from queuert.state.redis.settings import RedisSettings


def queued(pipeline: Any, script: Sequence[Any], settings: RedisSettings) -> Any:
    """Append a script and the wait for its flush to the pipeline, and return the pipeline."""
    pipeline.execute_command(*script)
    pipeline.execute_command("INCR", f"{settings.prefix}gen")
    # A timeout of 0 would mean no timeout.
    pipeline.execute_command("WAITAOF", 1, 0, max(1, int(settings.flush_timeout * 1000)))
    return pipeline


def confirmed(answers: Sequence[Any], settings: RedisSettings) -> Any:
    """Return the answer of the script, which is flushed.

    Raises:
        redis.ResponseError: the script, or the write after it, was refused.
        StateUnavailableError: the script has run, but it is unknown whether its writes are flushed.
    """
    answer, mark, flush = answers
    for one in (answer, mark):
        if isinstance(one, ResponseError):
            raise one
    if isinstance(flush, ResponseError) or flush[0] < 1:
        why = flush if isinstance(flush, ResponseError) else f"no flush in {settings.flush_timeout:g} s"
        raise StateUnavailableError(
            f"the server did not confirm the flush of the write ({why}): the write is kept unless the server crashes"
        )
    return answer
