"""A run: start everything, break it by plan, let it drain, stop it, read the history, and check it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import queuert.testing.chaos.chain_invariants
import queuert.testing.chaos.holds
import queuert.testing.chaos.invariants_of_sharing
import queuert.testing.chaos.invariants_of_webhooks
import queuert.testing.chaos.zombies  # noqa: F401  (they register what they hold)
from queuert.errors import QueuertError
from queuert.job_types import JobTypes
from queuert.testing.chaos import files
from queuert.testing.chaos.display import Display
from queuert.testing.chaos.dry_run import Rehearsal, rehearse
from queuert.testing.chaos.faults import INJECTORS, Scene
from queuert.testing.chaos.fleet import Fleet, Missed
from queuert.testing.chaos.handlers import EVERY
from queuert.testing.chaos.history import History
from queuert.testing.chaos.invariants import check_all
from queuert.testing.chaos.leak_probes import Witnesses
from queuert.testing.chaos.loading import load_records
from queuert.testing.chaos.memory_growth import unmeasured
from queuert.testing.chaos.metrics import figures, measures, probes
from queuert.testing.chaos.operator_client import Operator
from queuert.testing.chaos.plan import Fault, Plan, make_plan
from queuert.testing.chaos.processes import ChaosError
from queuert.testing.chaos.profiles import ChaosSettings
from queuert.testing.chaos.receiver import Receiver
from queuert.testing.chaos.records import Records, Tail
from queuert.testing.chaos.report import ChaosReport, hangs, measured
from queuert.testing.chaos.stops import see_to_its_end
from queuert.testing.chaos.stores import OwnedStore, owned_store
from queuert.testing.chaos.thresholds import requested_of
from queuert.testing.chaos.timeline import timeline
from queuert.testing.chaos.worker import state_for
from queuert.testing.chaos.workload import job_types_of, load

STUCK_SECONDS = 30.0
INTERRUPTED = "interrupted: finish everything"
_LOOK = 0.2
_TRIES = 3
_CLIENTS_SECONDS = 120.0


def run_chaos(
    settings: ChaosSettings,
    *,
    display: Display | None = None,
    timeline_file: Path | None = None,
    report_file: Path | None = None,
) -> ChaosReport:
    """Break a store, its workers and its clients by a seeded plan, and check the result of every job.

    The processes, the servers and the files of a run are its own, and removed when this returns. The directory of the
    settings is kept; it also contains the history as a database (`history.db`).

    Args:
        settings: the size of the run, and the faults.
        display: shows the progress; by default nothing does.
        timeline_file: where to write a page of HTML with all faults, claims and completions.
        report_file: where to write the report as JSON. Both files are checked before anything starts; if one cannot be
            written at the end nevertheless, the returned report says so.

    Raises:
        EmbeddedServerError: there is no server to run.
        ChaosError: a part of the run itself failed.
        ConfigurationError: the workload is not valid or cannot be started, the directory is not empty, or a file cannot
            be written.
    """
    shown = display or Display(quiet=True)
    workload = None if settings.workload is None else load(settings.workload)
    plan = make_plan(settings)
    rehearsal = Rehearsal() if workload is None else rehearse(workload, plan)
    with files.directory_of(settings) as directory, ExitStack() as stack, _interruption_is_reported(shown):
        files.try_paths(timeline=timeline_file, report=report_file)
        store = owned_store(settings.store, directory, durable=settings.profile.durable)
        stack.callback(store.close)
        store.start()
        conductor = Conductor(settings, plan, store, directory, shown, job_types_of(workload), rehearsal.timeout)
        stack.callback(conductor.close)
        began = time.time()
        conductor.play()
        drained = time.time()
        conductor.rest()
        conductor.stop()
        conductor.close()
        history = _history(settings, conductor, directory)
        stack.callback(history.close)
        gates = requested_of(settings, plan, rehearsal.repeats)
        report = _report(settings, plan, gates, history, drained - began, conductor.drain_seconds)
        if timeline_file is not None:
            page = timeline(history, began, drained)
            report = replace(report, unwritten=files.write(timeline_file, page))
        if report_file is not None:
            unwritten = files.write(report_file, report.to_json() + "\n")
            report = replace(report, unwritten=report.unwritten + unwritten)
        return report


@contextmanager
def _interruption_is_reported(display: Display) -> Iterator[None]:
    """Print at once that everything is being ended, which takes some seconds."""
    try:
        yield
    except KeyboardInterrupt:
        display.say_once(INTERRUPTED)
        raise


def _history(settings: ChaosSettings, conductor: Conductor, directory: Path) -> History:
    history = History(settings.store)
    history.add("facts", ({"name": name, "value": value} for name, value in conductor.facts.items()))
    history.add("outages", (outage._asdict() for outage in conductor.scene.outages))
    conductor.scene.store.collect(history)
    load_records(history, directory)
    if settings.directory is not None:
        history.save(directory / "history.db")
    return history


class Conductor:
    """Causes the faults of a plan at their moments."""

    def __init__(
        self,
        settings: ChaosSettings,
        plan: Plan,
        store: OwnedStore,
        directory: Path,
        display: Display,
        job_types: JobTypes,
        timeout: float = 0.0,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._store = store
        self._display = display
        self._stuck_seconds = STUCK_SECONDS + timeout
        self._interrupted = threading.Event()
        self._done: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.facts: dict[str, Any] = {}
        self.drain_seconds = 0.0
        self._records = Records(directory / "faults.jsonl")
        with ExitStack() as stack:
            self._receiver = Receiver(directory)
            stack.callback(self._receiver.close)
            self._receiver.subscribe(state_for({"url": store.url, "listen_url": store.url}))
            self._fleet = Fleet(settings, plan, store, directory, receiver=self._receiver.port)
            stack.callback(self._fleet.close)
            self._witnesses = Witnesses(self._fleet, store, directory)
            stack.callback(self._witnesses.close)
            self.scene = self._scene(stack, store, directory, job_types)
            self._stack = stack.pop_all()

    def _scene(self, stack: ExitStack, store: OwnedStore, directory: Path, job_types: JobTypes) -> Scene:
        gates = directory / "gates"
        gates.mkdir(exist_ok=True)
        traces = Tail(directory / "traces.jsonl", lambda line: (line["m"], line["job"], line["attempt"]))
        stack.callback(traces.close)
        state = state_for({"url": store.url, "listen_url": store.url})
        self._operator = Operator(state, job_types, directory, self._settings.seed)
        stack.callback(self._operator.close)
        stops, left, hangs = (Records(directory / f"{name}.jsonl") for name in ("stops", "left", "hangs"))
        return Scene(store, self._fleet, self._receiver, self._operator, traces, gates, stops, left, hangs)

    def play(self) -> None:
        """Run until the last job has ended, or until no more jobs end."""
        self._display.say(f"plan {self._plan.digest}: {len(self._plan.faults)} faults, {self._settings.store}")
        if self._settings.profile.witnesses:
            self._display.say("the witnesses come to rest")
            self._witnesses.begin()
        self._fleet.start()
        with ThreadPoolExecutor(self._settings.profile.lanes, thread_name_prefix="queuert-chaos") as lanes:
            try:
                self._do_all(lanes)
            except KeyboardInterrupt:
                # Wait for faults that are under way.
                self._display.say_once(INTERRUPTED)
                self._interrupted.set()
                lanes.shutdown(wait=False, cancel_futures=True)
                raise
        self._fleet.heal()
        (self.scene.gates / EVERY).touch()
        if self._settings.profile.witnesses:
            self._witnesses.settle()
        self._wait_for_clients()
        self._drain()

    def _do_all(self, lanes: ThreadPoolExecutor) -> None:
        for future in list(self._at_their_moments(lanes)):
            while not wait([future], _LOOK).done:
                self._show()
            future.result()

    def _at_their_moments(self, lanes: ThreadPoolExecutor) -> Iterator[Future[None]]:
        for fault in self._plan.faults:
            while (pause := self._fleet.began + fault.at - time.time()) > 0:
                time.sleep(min(pause, _LOOK))
                self._show()
            yield lanes.submit(self._do, fault)

    def _do(self, fault: Fault) -> None:
        """Cause a fault; try it again later if the event that it waits for does not occur."""
        for _ in range(_TRIES):
            if self._happens(fault) or self._interrupted.wait(_LOOK):
                return

    def _happens(self, fault: Fault) -> bool:
        began = time.time()
        try:
            happened, reported = True, INJECTORS[fault.kind](self.scene, fault)
        except (Missed, QueuertError, OSError) as error:
            happened, reported = False, str(error)
        except Exception as error:
            # Another fault may have stopped the server that this fault is for.
            if type(error).__module__.partition(".")[0] not in ("psycopg", "redis", "sqlite3"):
                raise ChaosError(
                    f"fault {fault.number}, {fault.kind}, raised {type(error).__name__}: {error}"
                ) from error
            happened, reported = False, f"{type(error).__name__}: {error}"
        self._records.add(
            number=fault.number,
            kind=fault.kind,
            began=began,
            ended=time.time(),
            happened=int(happened),
            detail=reported,
            target=fault.target,
        )
        with self._lock:
            self._done["happened" if happened else "missed"] += 1
        return happened

    def _show(self) -> None:
        elapsed = time.time() - self._fleet.began
        self._display.progress(
            f"{elapsed:6.1f} s  faults {self._done['happened']} of {len(self._plan.faults)}, tries missed"
            f" {self._done['missed']}{self._witnesses.show()}"
        )

    def _wait_for_clients(self) -> None:
        deadline = time.monotonic() + _CLIENTS_SECONDS
        while not self._fleet.clients_are_done and time.monotonic() < deadline:
            time.sleep(_LOOK)
            self._display.progress("clients finish their starts")
        if not self._fleet.clients_are_done:
            self._display.say(
                f"not all starts were made within {_CLIENTS_SECONDS:g} s: see client-*.log in --directory"
            )

    def _drain(self) -> None:
        """Wait until no job is left, or until nothing has ended for so long that nothing will."""
        began = moved = time.monotonic()
        left, before = -1, -1
        while left != 0 and time.monotonic() - moved < self._stuck_seconds:
            # What is unread first: what is read becomes jobs.
            unread = self._receiver.unread
            before, left = left, self._store.open_jobs() + unread
            moved = moved if left == before else time.monotonic()
            self._display.progress(f"drain: {left} jobs to go")
            time.sleep(_LOOK if left else 0)
        self.drain_seconds = time.monotonic() - began
        self._display.say(f"drained in {self.drain_seconds:.1f} s, {left} jobs left")

    def rest(self) -> None:
        """Measure the resources of all processes, now that they are idle."""
        self._operator.close()
        self._receiver.finish()
        self.facts |= self._witnesses.end()

    def stop(self) -> None:
        """Ask the workers to stop; the history contains how they do."""
        self.facts |= self._store.last_words()
        began = time.time()
        for place, child in self._fleet.stop_workers():
            see_to_its_end(self.scene, place, child, "the end", began)

    def close(self) -> None:
        """End all processes."""
        self._stack.close()


def _report(
    settings: ChaosSettings,
    plan: Plan,
    gates: dict[str, int],
    history: History,
    seconds: float,
    drain_seconds: float,
) -> ChaosReport:
    found = figures(history)
    return ChaosReport(
        profile=settings.profile.name,
        seed=settings.seed,
        store=settings.store,
        plan=plan.digest,
        seconds=round(seconds, 1),
        drain_seconds=round(drain_seconds, 1),
        faults=_counts(history, happened=1),
        missed=_counts(history, happened=0),
        violations=check_all(history),
        probes=probes(history),
        gates=gates,
        measures=measured(measures(history, drain_seconds), found, unmeasured(history)),
        limits=settings.limits,
        figures=found,
        hangs=hangs(history),
    )


def _counts(history: History, *, happened: int) -> dict[str, int]:
    rows = history.rows("SELECT kind, count(*) FROM f WHERE happened = ? GROUP BY kind", (happened,))
    return {str(kind): int(count) for kind, count in rows}
