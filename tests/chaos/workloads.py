"""Workloads that cannot take part in a run, and one whose starts are duplicates of each other."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from queuert import JobType, JobTypes, NewChain, Processors, RetryPolicy
from queuert.deduplication import Deduplicate
from queuert.testing.chaos import Workload
from tests.chaos.workload import double, processors

_unhandled = JobType("unhandled", input=int, output=int)


def _raises(random: Random, number: int) -> NewChain[Any]:
    raise LookupError(f"there is no customer {number}")


def _raises_later(random: Random, number: int) -> NewChain[Any]:
    return _raises(random, number) if number > 20 else NewChain(double, number)


def _no_processors() -> Processors:
    raise LookupError("there is no table of customers")


def _with_one_unhandled() -> Processors:
    made = Processors(JobTypes(double, _unhandled))
    made.handles(double)(lambda attempt: attempt.input)
    return made


def _with_long_pauses() -> Processors:
    made = Processors(JobTypes(double), retry=RetryPolicy(max_delay=86_400.0))
    made.handles(double)(lambda attempt: attempt.input)
    return made


def _one_of_three(random: Random, number: int) -> NewChain[Any]:
    return NewChain(double, number, deduplication=Deduplicate(f"customer-{number % 3}"))


raises = Workload(processors, _raises)
raises_later = Workload(processors, _raises_later)
gives_a_number = Workload(processors, lambda random, number: cast(Any, number))
gives_a_wrong_input = Workload(processors, lambda random, number: NewChain(double, cast(Any, "many")))
gives_what_nobody_handles = Workload(_with_one_unhandled, lambda random, number: NewChain(_unhandled, 1))
has_no_processors = Workload(_no_processors, lambda random, number: NewChain(double, 1))
of_three_customers = Workload(processors, _one_of_three)
with_timeout = Workload(_with_one_unhandled, lambda random, number: NewChain(double, 1))
without_end = Workload(_with_long_pauses, lambda random, number: NewChain(double, 1))
