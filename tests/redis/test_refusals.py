"""What a script refuses is told from what it answers, and what a server refuses from what is wrong with an operation."""

from __future__ import annotations

import pytest

from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.testing.conformance.builders import ask, complete, job

NAME = "refused"


# --- by a script ------------------------------------------------------------------------------------------------------


async def test_a_job_type_and_a_chain_may_have_any_name(store: AsyncRedisStore) -> None:
    await store.start_jobs([job(NAME, id=NAME, attributes={NAME: NAME})])
    assert [one.type for one in await store.count_jobs()] == [NAME]
    assert [one.type for one in await store.get_demand()] == [NAME]
    await store.pause_job_types([NAME], reason=NAME, by=NAME)
    assert [one.type for one in await store.list_paused_job_types()] == [NAME]
    await store.resume_job_types([NAME])
    assert await store.resume_job_types([NAME]) == []
    await store.pause_job_types([NAME])
    assert await store.resume_job_types([NAME]) == [NAME]
    await store.trigger_jobs([NAME])
    [claimed] = await store.claim(ask(NAME, holder=NAME))
    await store.release_stranded()
    await store.finish([complete(claimed)])
    assert (await store.delete_chains([NAME])).chain_ids == (NAME,)


async def test_a_refusal_is_one_still(store: AsyncRedisStore) -> None:
    await store.start_jobs([job(id=NAME)])
    with pytest.raises(JobIdConflictError, match=NAME):
        await store.start_jobs([job(id=NAME)])
    with pytest.raises(ChainNotFoundError, match="nobody"):
        await store.cancel_chains(["nobody"], reason=NAME)
