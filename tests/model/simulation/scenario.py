"""One simulated run: what is planned for it, made of the seed alone, and how it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from queuert import AsyncClient, InProcessWorker
from queuert.errors import JobIdConflictError, QueuertError, StateError
from queuert.observability.events import Event
from queuert.run_at import after
from tests.model.simulation.handlers import JOB_TYPES, Desk, Sitting, plain, processors, work
from tests.model.simulation.network import Notifications, SimulatedNotify, SimulatedState
from tests.model.simulation.plain_store import Entry
from tests.model.simulation.plan import FAULTS_END, Fault, Plan, Start
from tests.model.simulation.server import Server
from tests.model.simulation.standins import Ordered, simulated
from tests.model.simulation.world import Process, World, start

DRAIN = 400.0
"""Seconds after the last fault in which everything must have ended."""
STOP = 60.0
"""Seconds in which a worker must have stopped."""


class Reported:
    """What a worker tells, in the order in which it does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[tuple[float, Event]] = []

    def emit(self, event: Event) -> None:
        """Keep it."""
        self.events.append((self._world.now, event))


@dataclass(eq=False)
class Machine:
    """A process with a worker in it."""

    process: Process
    worker: InProcessWorker
    reported: Reported
    holder: str = ""
    start_error: BaseException | None = None
    stopping: asyncio.Task[None] | None = None
    stopped: bool = False
    kept: list[str] | None = None
    """The jobs that it still held when it had stopped, where nothing was in the way of giving them back."""

    async def begin(self) -> None:
        """Start the worker; again and again, while the store is out of reach."""
        while True:
            try:
                await self.worker.start()
            except StateError:
                await asyncio.sleep(1.0)
            else:
                break
        runtime = self.worker._runtime
        if runtime is not None:
            self.holder = runtime.name
            _let_have_order(runtime, ["attempts", "_tasks"])
            _let_have_order(runtime.leases, ["_held"])
            _let_have_order(runtime.prefetch.slots, ["_tasks"])


def _let_have_order(owner: object, names: Sequence[str]) -> None:
    """Members of these sets lie anywhere in memory: a run that is repeated should meet them in the same order."""
    for name in names:
        ordered = Ordered()
        ordered.update(vars(owner)[name])
        vars(owner)[name] = ordered


class Scenario:
    """A run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World()
        self.server = Server(self.world, plan.weather)
        self.notifications = Notifications(self.world, plan.weather, plan.healthy_notifications)
        self.desk = Desk(self.world)
        self.machines: list[Machine] = []
        self.acknowledged: list[str] = []
        self.observed: list[str] = []
        """What was wrong while it ran."""
        self.epoch = self.world.now
        self.world.on_death = lambda process: self.world.later(2.0, None, self.new_machine)
        self._client_process = Process(self.world, "client")
        self._client = self._new_client(self._client_process, Reported(self.world))
        self.server.store.heard = self._check_entry

    def _new_client(self, process: Process, reported: Reported) -> AsyncClient:
        notify = SimulatedNotify(self.notifications, process)
        return AsyncClient(
            SimulatedState(self.server, process, notify), JOB_TYPES, notify=notify, observability=reported
        )

    def run(self) -> None:
        """Run it to its end."""
        plan, world = self.plan, self.world
        with simulated(world, plan.seed):
            for _ in range(plan.workers):
                self.new_machine()
            for one in plan.starts:
                world.at(self.epoch + one.at, None, partial(self._begin, one))
            for fault in plan.faults:
                world.at(self.epoch + fault.at, None, partial(self._break, fault))
            world.run(self.epoch + FAULTS_END)
            if not self.at_work:
                self.new_machine()
            self._watch_for_the_end()
            world.run(self.epoch + FAULTS_END + DRAIN)
            world.ended = False
            world.on_death = lambda process: None
            for machine in self.at_work:
                self.stop(machine, None)
            world.run(world.now + STOP)

    # --- workers ------------------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> list[Machine]:
        """Workers that live, and have not been asked to stop."""
        return [one for one in self.machines if one.process.alive and one.stopping is None]

    def new_machine(self) -> None:
        """Start another worker."""
        process = Process(self.world, f"worker-{len(self.machines) + 1}")
        reported = Reported(self.world)
        client = self._new_client(process, reported)
        worker = InProcessWorker(
            client,
            processors(process, self.desk, self.plan.lease),
            name=process.name,
            concurrency=self.plan.concurrency,
            shutdown_timeout=self.plan.shutdown_timeout,
            poll_interval=self.plan.poll_interval,
        )
        machine = Machine(process, worker, reported)
        self.machines.append(machine)
        start(process, machine.begin(), "begin")

    def stop(self, machine: Machine, shutdown_timeout: float | None) -> None:
        """Ask a worker to stop."""
        machine.stopping = start(machine.process, self._stop(machine, shutdown_timeout), "stop")

    async def _stop(self, machine: Machine, shutdown_timeout: float | None) -> None:
        began, process = self.world.now, machine.process
        await machine.worker.stop(shutdown_timeout=shutdown_timeout)
        machine.stopped = True
        troubled_until = max(self.server.troubled_until, self.plan.weather.rough_until)
        if max(troubled_until, process.frozen_at, process.blocked_at) < began:
            rows = self.server.store.jobs.values()
            machine.kept = [row.id for row in rows if row.leased and row.holder == machine.holder]

    def _troubled_until(self) -> float:
        weather = self.plan.weather
        # What was sent in rough weather is under way for a while.
        return max(self.server.troubled_until, weather.rough_until and weather.rough_until + 2 * weather.late)

    def _watch_for_the_end(self) -> None:
        jobs = self.server.store.jobs
        if len(self.acknowledged) == len(self.plan.starts) and all(one.status.final for one in jobs.values()):
            self.world.ended = True
        else:
            self.world.later(1.0, None, self._watch_for_the_end)

    # --- the client ---------------------------------------------------------------------------------------------------

    def _in_client(self, coroutine: Any, name: str) -> None:
        start(self._client_process, coroutine, name)

    def _begin(self, one: Start) -> None:
        self._in_client(self._start(one), one.id)

    async def _start(self, one: Start) -> None:
        """Start a chain, until it is known to be there."""
        job_type = work if one.type == "work" else plain
        while True:
            try:
                await self._client.start_chain(
                    job_type,
                    one.acts,
                    id=one.id,
                    priority=one.priority,
                    run_at=after(seconds=one.delay) if one.delay else None,
                    blockers=[one.blocker] if one.blocker else [],
                )
            except JobIdConflictError:
                break
            except QueuertError:
                # Out of reach, or the blocker is not there yet.
                await asyncio.sleep(0.5)
            else:
                break
        self.acknowledged.append(one.id)

    async def _from_outside(self, what: str, chain: str) -> None:
        client = self._client
        calls: dict[str, Any] = {"cancel": client.cancel_chains, "retry": client.retry_chains}
        try:
            if what == "complete":
                await client.complete_chain(chain, f"{chain}/outside")
            else:
                await calls[what]([chain])
        except QueuertError:
            return

    # --- what can only be seen while it goes on -----------------------------------------------------------------------

    def _check_entry(self, entry: Entry) -> None:
        job, lease = entry.job_id, self.plan.lease
        if entry.what == "claim":
            for one in self._at_work_on(job):
                self._note(f"job {job} was claimed, and attempt {one.attempt.number} goes on in {one.process.name}")
        elif entry.what == "outside cancelled":
            # Its renewal is refused; where that cannot be learnt, its lease comes to its end.
            self.world.later(lease / 2, None, lambda: self._look_whether_reported(entry, calm=True))
            self.world.later(lease, None, lambda: self._look_whether_reported(entry, calm=False))
        elif entry.what == "reap":
            for one in self.desk.sittings:
                same = (one.attempt.job_id, one.attempt.number) == (job, entry.attempt)
                since = self.world.now - entry.until + lease
                # What blocks the loop holds up the answer to a claim: what is left of the lease may be little.
                held_up = entry.until - lease < one.process.blocked_at <= one.began
                calm = not held_up and self._calm_for(since, one.process)
                if same and one.process.alive and one.holds_no_row and calm:
                    self._note(f"a worker to which nothing happened lost its lease of job {job}")

    def _note(self, what: str) -> None:
        self.observed.append(f"at {self.world.now - self.epoch:.3f}: {what}")

    def _calm_for(self, seconds: float, process: Process) -> bool:
        """Whether nothing has gone wrong for so long."""
        last = max(self._troubled_until(), process.frozen_at)
        return last < self.world.now - seconds - 1.0

    def _look_whether_reported(self, entry: Entry, *, calm: bool) -> None:
        for one in self._at_work_on(entry.job_id):
            if one.attempt.number == entry.attempt and (not calm or self._calm_for(self.plan.lease / 2, one.process)):
                self._note(f"job {entry.job_id} was cancelled at {entry.at - self.epoch:.3f}, and goes on untold")

    def _at_work_on(self, job_id: str) -> list[Sitting]:
        """Handlers that go on, in a worker that could have told them to stop: it has not stood still of late.

        Inside a transaction a handler holds its job by a lock, and learns at its end that the server has ended it.
        """
        early = self.world.now - self.plan.lease / 10
        return [
            one for one in self.desk.sittings
            if one.goes_on and one.attempt.job_id == job_id and one.process.frozen_at < early
            and one.holds_no_row
        ]  # fmt: skip

    # --- faults -------------------------------------------------------------------------------------------------------

    def _break(self, fault: Fault) -> None:
        if fault.kind in ("away", "hang"):
            (self.server.go_away if fault.kind == "away" else self.server.hang)(fault.seconds)
            return
        if fault.kind in ("cancel", "complete", "retry"):
            chain = self.plan.starts[fault.target % len(self.plan.starts)].id
            self._in_client(self._from_outside(fault.kind, chain), fault.kind)
            return
        if fault.kind == "flash":
            self.new_machine()
            machine = self.machines[-1]
            self.world.later(fault.seconds, None, lambda: self.stop(machine, None))
            return
        if not self.at_work:
            return
        machine = self.at_work[fault.target % len(self.at_work)]
        self.server.probes[fault.kind] += 1
        match fault.kind:
            case "freeze":
                machine.process.freeze(fault.seconds)
            case "cut_off":
                self.server.cut_off(machine.process, fault.seconds)
            case "kill":
                machine.process.kill()
            case "stop" | "hurry":
                self.stop(machine, fault.seconds)
                self.world.later(1.0, None, self.new_machine)
                if fault.kind == "hurry":
                    start(machine.process, machine.worker.stop(), "hurry")
