"""The run: every scenario in every round, the contestants of each in turn, in an order that is rotated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.child import Request
from benchmarks.environments import EnvironmentFailed, Environments
from benchmarks.model import Entry, Outcome, Scenario, Series, Store
from benchmarks.process import ContestantFailed, ask, ask_together, running
from benchmarks.servers import PostgresServer, RedisServer

TIMEOUT = 120.0
"""Seconds that a contestant has for one thing."""

_SLOWEST = 500
"""Jobs a second below which a contestant is given up, when there are very many."""

_FILLED_A_SECOND = 5_000
"""Rows, at the least, that a database is filled with in a second."""

_LOADED_SECONDS = 3.0
"""How long jobs are offered to a worker at a part of what it can drain."""


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
        self._capacities: dict[int, float] = {}

    def run(self, scenarios: Sequence[Scenario], rounds: int) -> list[Outcome]:
        """Measure all of them ``rounds`` times. A contestant that failed is left out of the rounds that follow."""
        outcomes = [
            Outcome(one, [Series(entry, entry.jobs(round(self._jobs * one.share))) for entry in one.entries])
            for one in scenarios
        ]
        for number in range(rounds):
            for outcome in outcomes:
                began = time.monotonic()
                for series in rotated(outcome.series, number):
                    if series.error is None:
                        self._measure(outcome.scenario, series, number, rounds)
                outcome.seconds += time.monotonic() - began
        return outcomes

    def _measure(self, scenario: Scenario, series: Series, number: int, rounds: int) -> None:
        began = time.monotonic()
        try:
            sample = self._sample(scenario, series.entry, series.jobs)
        except (ContestantFailed, EnvironmentFailed) as error:
            series.error = str(error)
            said = f"FAILED: {series.error}"
        else:
            series.samples[number] = sample
            said = f"{sample[scenario.metric]:,.5g} {scenario.unit}"
        place = f"round {number + 1}/{rounds}"
        self._tell(f"{place}  {scenario.name:24} {series.entry.label:40} {said}  ({time.monotonic() - began:.1f} s)")

    def _sample(self, scenario: Scenario, entry: Entry, jobs: int) -> dict[str, float]:
        more: dict[str, float] = {}
        if scenario.load:
            more["rate"] = scenario.load * self._capacity(scenario, entry)
            jobs = max(10, round(more["rate"] * _LOADED_SECONDS))
        with (
            self._place(scenario, entry, jobs) as (server, observed),
            observed as reported,
            self._held_snapshot(entry, server),
        ):
            answer = self._act(scenario, entry, Request(scenario.action, server, jobs, {**entry.options, **more}))
        offered = {"offered_rate": more["rate"]} if scenario.load else {}
        return {**answer, **offered, **(reported if scenario.observed and not scenario.paced else {})}

    def _act(self, scenario: Scenario, entry: Entry, request: Request) -> dict[str, float]:
        python, module = self._environments.python(entry.contestant), entry.contestant.module
        timeout = self._timeout + request.jobs / _SLOWEST
        if entry.processes > 1:
            shared = Request(request.action, request.server, request.jobs, {**request.options, **_shared(entry)})
            return ask_together(python, module, shared, entry.processes, timeout=timeout)
        if not scenario.paced:
            return ask(python, module, request, timeout=timeout, tell=self._tell)
        with running(python, module, request, timeout=timeout) as worker:
            worker.wait_until_ready()
            pace = Request("pace", request.server, request.jobs, request.options)
            ask(python, module, pace, timeout=timeout)
            return worker.answer()

    def _capacity(self, scenario: Scenario, entry: Entry) -> float:
        """Jobs a second that the entry drains, measured once a run."""
        if id(entry) not in self._capacities:
            drain = Scenario("drain", "", scenario.store, "drain", (entry,), loaded="load")
            self._capacities[id(entry)] = self._sample(drain, entry, entry.jobs(self._jobs))["rate"]
        return self._capacities[id(entry)]

    @contextlib.contextmanager
    def _place(
        self, scenario: Scenario, entry: Entry, jobs: int
    ) -> Iterator[tuple[str, contextlib.AbstractContextManager[dict[str, float]]]]:
        """A server prepared for the entry, and a block that observes it."""
        if scenario.store is Store.POSTGRES:
            postgres = self._servers.postgres
            assert postgres is not None
            template = self._template(postgres, scenario, entry, jobs)
            with postgres.itself(template) if entry.kept else postgres.copy(template) as dsn:
                yield dsn, postgres.observed(dsn, jobs)
        else:
            redis = self._servers.redis
            assert redis is not None
            with redis.emptied() as url:
                if scenario.loaded:
                    self._ask(entry, scenario.loaded, url, jobs)
                yield url, redis.observed(jobs)

    def _held_snapshot(self, entry: Entry, server: str) -> contextlib.AbstractContextManager[None]:
        postgres = self._servers.postgres
        return postgres.snapshot(server) if entry.snapshot and postgres is not None else contextlib.nullcontext()

    def _template(self, postgres: PostgresServer, scenario: Scenario, entry: Entry, jobs: int) -> str:
        """The schema of the contestant, and the jobs of the scenario in it, made once a run."""
        prepared = f"{entry.contestant.module} {entry.options.get('prepare')}"
        empty = postgres.template(prepared, lambda dsn: self._ask(entry, "prepare", dsn, 0))
        loaded = scenario.loaded
        if loaded is None:
            return empty
        # What is kept belongs to one entry: it finds there what it left.
        owner = f"{scenario.name} {entry.label}" if entry.kept else ""
        name = f"{prepared} {loaded} {jobs} {entry.filled} {owner}"
        return postgres.template(name, lambda dsn: self._ask(entry, loaded, dsn, jobs), source=empty)

    def _ask(self, entry: Entry, action: str, server: str, jobs: int) -> dict[str, float]:
        python = self._environments.python(entry.contestant)
        request = Request(action, server, jobs, dict(entry.options))
        timeout = self._timeout + int(entry.options.get("rows", 0)) / _FILLED_A_SECOND
        return ask(python, entry.contestant.module, request, timeout=timeout, tell=self._tell)


def _shared(entry: Entry) -> dict[str, Any]:
    return {"processes": entry.processes}


def rotated(series: Sequence[Series], number: int) -> list[Series]:
    """The series in the order of a round: each goes first in its turn."""
    start = number % len(series)
    return [*series[start:], *series[:start]]
