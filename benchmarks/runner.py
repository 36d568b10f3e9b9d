"""The run: every scenario in every round, the contestants of each in turn, in an order that is rotated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.child import Request
from benchmarks.environments import EnvironmentFailed, Environments
from benchmarks.model import Entry, Outcome, Scenario, Series, Store
from benchmarks.process import ContestantFailed, ask, running
from benchmarks.servers import PostgresServer, RedisServer

TIMEOUT = 120.0
"""Seconds that a contestant has for one thing."""


@dataclass
class Servers:
    """The servers that a run needs."""

    postgres: PostgresServer | None = None
    redis: RedisServer | None = None


class Runner:
    """Measures scenarios, and says how far it is.

    Args:
        servers: what the scenarios run on.
        environments: where the contestants are installed.
        jobs: in a scenario and for an entry whose share is 1.
        tell: is given a line of progress.
    """

    def __init__(
        self,
        servers: Servers,
        environments: Environments,
        *,
        jobs: int,
        tell: Callable[[str], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._servers = servers
        self._environments = environments
        self._jobs = jobs
        self._tell = tell
        self._timeout = timeout

    def run(self, scenarios: Sequence[Scenario], rounds: int) -> list[Outcome]:
        """Measure all of them ``rounds`` times. A contestant that failed is left out of the rounds that follow."""
        outcomes = [
            Outcome(one, [Series(entry, entry.jobs(round(self._jobs * one.share))) for entry in one.entries])
            for one in scenarios
        ]
        for number in range(rounds):
            for outcome in outcomes:
                for series in rotated(outcome.series, number):
                    if series.error is None:
                        self._measure(outcome.scenario, series, number, rounds)
        return outcomes

    def _measure(self, scenario: Scenario, series: Series, number: int, rounds: int) -> None:
        began = time.monotonic()
        try:
            sample = self._sample(scenario, series)
        except (ContestantFailed, EnvironmentFailed) as error:
            series.error = str(error)
            said = f"FAILED: {series.error}"
        else:
            series.samples[number] = sample
            said = f"{sample[scenario.metric]:,.5g} {scenario.unit}"
        place = f"round {number + 1}/{rounds}"
        self._tell(f"{place}  {scenario.name:24} {series.entry.label:40} {said}  ({time.monotonic() - began:.1f} s)")

    def _sample(self, scenario: Scenario, series: Series) -> dict[str, float]:
        entry, jobs = series.entry, series.jobs
        with self._place(scenario, entry, jobs) as (server, observed), observed as told:
            answer = self._act(scenario, entry, jobs, server)
        return {**answer, **({} if scenario.paced else told)}

    def _act(self, scenario: Scenario, entry: Entry, jobs: int, server: str) -> dict[str, float]:
        python = self._environments.python(entry.contestant)
        module, options = entry.contestant.module, dict(entry.options)
        request = Request(scenario.action, server, jobs, options)
        if not scenario.paced:
            return ask(python, module, request, timeout=self._timeout)
        with running(python, module, request, timeout=self._timeout) as worker:
            worker.wait_until_ready()
            ask(python, module, Request("pace", server, jobs, options), timeout=self._timeout)
            return worker.answer()

    @contextlib.contextmanager
    def _place(
        self, scenario: Scenario, entry: Entry, jobs: int
    ) -> Iterator[tuple[str, contextlib.AbstractContextManager[dict[str, float]]]]:
        """A server prepared for the entry, and a block that observes it."""
        if scenario.store is Store.POSTGRES:
            postgres = self._servers.postgres
            assert postgres is not None
            with postgres.copy(self._template(postgres, scenario, entry, jobs)) as dsn:
                yield dsn, postgres.observed(dsn, jobs)
        else:
            redis = self._servers.redis
            assert redis is not None
            with redis.emptied() as url:
                if scenario.loaded:
                    self._ask(entry, scenario.loaded, url, jobs)
                yield url, redis.observed(jobs)

    def _template(self, postgres: PostgresServer, scenario: Scenario, entry: Entry, jobs: int) -> str:
        """The schema of the contestant, and the jobs of the scenario in it, made once a run."""
        prepared = f"{entry.contestant.module} {entry.options.get('prepare')}"
        empty = postgres.template(prepared, lambda dsn: self._ask(entry, "prepare", dsn, 0))
        loaded = scenario.loaded
        if loaded is None:
            return empty
        return postgres.template(
            f"{prepared} {loaded} {jobs}", lambda dsn: self._ask(entry, loaded, dsn, jobs), source=empty
        )

    def _ask(self, entry: Entry, action: str, server: str, jobs: int) -> dict[str, float]:
        python = self._environments.python(entry.contestant)
        request = Request(action, server, jobs, dict(entry.options))
        return ask(python, entry.contestant.module, request, timeout=self._timeout)


def rotated(series: Sequence[Series], number: int) -> list[Series]:
    """The series in the order of a round: each goes first in its turn."""
    start = number % len(series)
    return [*series[start:], *series[:start]]
