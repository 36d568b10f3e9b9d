"""A flow with queues of children: requirements are checked in parallel, rewards are given in parallel.

A member joins a guild. Each role asks for requirements, which other services look up, each in a queue of its own; when
the last one has answered, the roles are decided, and the flow goes on to the rewards, in a queue for each platform.
Who waits for children takes no place at a worker. A correlation id follows from the request into every child.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.guild_access_flow``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel, Field

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Limits,
    NewChain,
    Outcome,
    Processors,
    RetryPolicy,
)
from queuert.errors import RetryLater, Unrecoverable
from queuert.limits import Rate
from queuert.worker import CallNext

# --- what the jobs are ------------------------------------------------------------------------------------------------

correlation: ContextVar[str] = ContextVar("correlation", default="none")


class Step(BaseModel):
    """What every step has: whatever makes one, a request or a handler, hands its own correlation id on."""

    user: int
    guild: int
    correlation: str = Field(default_factory=lambda: correlation.get())


class Join(Step):
    roles: dict[str, list[str]]
    """What each role asks for."""


class Requirement(Step):
    name: str


class Granted(Step):
    roles: list[str]


class Reward(Step):
    role: str


class Access(BaseModel):
    roles: list[str]
    rewards: list[str]


requirement = JobType("access:check/requirement", input=Requirement, output=bool)
discord = JobType("access:rewards/discord", input=Reward, output=str)
telegram = JobType("access:rewards/telegram", input=Reward, output=str)
rewards = JobType("access:rewards", input=Granted, output=Access)
membership = JobType("access:membership", input=Granted, continues_with=rewards)
check = JobType("access:check", input=Join, continues_with=membership)
job_types = JobTypes(requirement, discord, telegram, rewards, membership, check)

PLATFORMS: dict[str, JobType[Reward, str]] = {"discord": discord, "telegram": telegram}
FULFILLED = {(7, "email"), (7, "follower"), (8, "email")}

# --- how they are done ------------------------------------------------------------------------------------------------


async def correlated(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    """Steps that the handler makes, and what it logs, have the correlation id of its own."""
    correlation.set(attempt.input.correlation)
    return await call_next()


processors = Processors(job_types, middlewares=[correlated], retry=RetryPolicy(max_attempts=3, initial_delay=0.01))


def children(attempt: Attempt[Any, Any], pairs: Iterable[tuple[JobType[Any, Any], Step]]) -> list[NewChain[Any]]:
    """Chains in the priority of who starts them, counted under the guild."""
    priority = attempt.priority
    return [NewChain(type, step, priority=priority, limit_key=f"guild {step.guild}") for type, step in pairs]


@processors.handles(check, on_blocker_failure="run")
async def check_access(attempt: Attempt[Join, Access]) -> Outcome[Access]:
    join = attempt.input
    names = sorted({name for requested in join.roles.values() for name in requested})
    if names and not attempt.blockers:
        requested = (Requirement(user=join.user, guild=join.guild, name=name) for name in names)
        return attempt.wait_for(*children(attempt, ((requirement, one) for one in requested)))
    # One that failed has no output: it is not fulfilled.
    fulfilled = {name for name, answer in zip(names, attempt.blockers, strict=True) if answer.output}
    roles = sorted(role for role, requested in join.roles.items() if fulfilled.issuperset(requested))
    if not roles:
        return attempt.fail("no role is granted")
    granted = Granted(user=join.user, guild=join.guild, roles=roles)
    return attempt.continue_with(membership, granted, output=sorted(fulfilled))


@processors.handles(requirement)
def look_up(attempt: Attempt[Requirement, bool]) -> Outcome[bool]:
    requested = attempt.input
    if requested.name == "nft":
        raise Unrecoverable("there is no such contract")
    return (requested.user, requested.name) in FULFILLED


@processors.handles(membership)
async def update_membership(attempt: Attempt[Granted, Access]) -> Outcome[Access]:
    return attempt.continue_with(rewards, attempt.input)


@processors.handles(rewards)
async def manage_rewards(attempt: Attempt[Granted, Access]) -> Outcome[Access]:
    granted = attempt.input
    if not attempt.blockers:
        steps = [Reward(user=granted.user, guild=granted.guild, role=role) for role in granted.roles]
        return attempt.wait_for(
            *children(attempt, ((platform, step) for step in steps for platform in PLATFORMS.values()))
        )
    given = [*attempt.outputs_of(discord), *attempt.outputs_of(telegram)]
    return Access(roles=granted.roles, rewards=given)


# All workers together: one at a time for each guild, and no more in a second than the platform lets us.
@processors.handles(discord, limits=Limits(per_key=1, rate=Rate(50, per=1)))
async def reward_in_discord(attempt: Attempt[Reward, str]) -> Outcome[str]:
    if attempt.number == 1:
        raise RetryLater(after=0.02, reason="Discord asks us to wait")
    return f"discord {attempt.input.role} ({attempt.input.correlation})"


@processors.handles(telegram, limits=Limits(per_key=2))
async def reward_in_telegram(attempt: Attempt[Reward, str]) -> Outcome[str]:
    return f"telegram {attempt.input.role} ({attempt.input.correlation})"


# --- a request --------------------------------------------------------------------------------------------------------


async def join(client: AsyncClient, user: int, roles: dict[str, list[str]], *, priority: int = 0) -> Access:
    """Ask for access, and wait for it; kept for three hours, and found by user and guild."""
    return await client.start_and_wait(
        check,
        Join(user=user, guild=1, roles=roles),
        priority=priority,
        result_ttl=3 * 3600,
        attributes={"user": user, "guild": 1, "correlation": correlation.get()},
    )


ROLES = {"member": ["email"], "fan": ["email", "follower"], "collector": ["nft"]}


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        async with InProcessWorker(client, processors, concurrency=2), InProcessWorker(client, processors):
            for user in (7, 8):
                correlation.set(f"request-{user}")
                access = await join(client, user, ROLES, priority=user)
                print(f"user {user}: {', '.join(access.roles)}")
                print("  " + ", ".join(sorted(access.rewards)))

        [chain] = await client.list_chains(attributes={"user": 7, "guild": 1}, limit=1)  # the newest
        for job in await client.list_chain_jobs(chain):
            print(f"{job.type} is {job.status}")
            for child in await client.get_blockers(job.id):
                print(f"  {child.type} is {child.status}")


if __name__ == "__main__":
    asyncio.run(main())
