"""Starts the driver and the workers, kills one worker half way, starts another, and prints the proof."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from queuert.cli.exit_codes import Exit
from queuert.demo.job_types import Report
from queuert.demo.processes import LISTENS, Process, start_dashboard, start_driver, start_worker
from queuert.demo.progress import Display, Snapshot, choose_display, current_phase, read_snapshot
from queuert.demo.proof import read_figures, run_checks, table, verdict
from queuert.demo.run_page import read_story, render
from queuert.demo.settings import DemoError, DemoSettings
from queuert.demo.stage import Stage, find_prerequisites, remove_temporary, set_up

_LOOK_EVERY = 0.05
_FINISH = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_HOLDERS = "SELECT holder, count(*) FROM queuert_demo.job WHERE status = 'running' GROUP BY holder"
_REPORT = "SELECT output FROM queuert_demo.job WHERE type = 'report' AND status = 'completed'"


def run(settings: DemoSettings) -> int:
    """Run the demo; 0 if the proof holds.

    Raises:
        QueuertError, EmbeddedServerError: a part is missing or failed; everything that was started is stopped.
        KeyboardInterrupt: Ctrl-C, or a signal that asks to end; likewise.
    """
    java = find_prerequisites(settings)
    stack = ExitStack()
    with signals_interrupt():
        try:
            stage = set_up(settings, java, stack)
            show = Show(settings, stage, stack)
            with choose_display() as display:
                show.play(display)
            return _tell(settings, stage, show)
        finally:
            # The cleanup is short: a second Ctrl-C must not interrupt it.
            _ignore_signals()
            stack.close()


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt inside, whatever error follows from them."""
    requested = False
    driver = logging.getLogger("psycopg")
    level = driver.level

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        # psycopg would warn of the interrupted connection, which its pool then discards.
        driver.setLevel(logging.ERROR)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _FINISH}
    try:
        yield
    except Exception as error:
        # The interrupted code may raise its own error, such as a lost connection.
        if requested:
            raise KeyboardInterrupt from error
        raise
    finally:
        driver.setLevel(level)
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _FINISH:
        signal.signal(number, signal.SIG_IGN)


class Show:
    """A run: its processes, and which of them was killed."""

    def __init__(self, settings: DemoSettings, stage: Stage, stack: ExitStack) -> None:
        self._settings = settings
        self._stage = stage
        self._workers: list[Process] = []
        self._driver: Process | None = None
        self._dashboard: Process | None = None
        self._announced = False
        self._victim: Process | None = None
        self.killed_at: datetime | None = None
        self.unclean: list[str] = []
        """The workers that did not stop as asked."""
        stack.callback(self._kill_all)

    def play(self, display: Display) -> None:
        """Run it all, until every chain is closed and every worker has stopped.

        Raises:
            DemoError: a process ended unexpectedly.
        """
        display.say("Postgres is running, and the tables are created")
        for _ in range(self._settings.workers):
            self._start_worker(display)
        self._driver = start_driver(
            self._settings,
            self.report_path,
            self.history_path,
            workspace=self._stage.workspace,
            environment=self._stage.environment,
        )
        if self._settings.dashboard and find_spec("starlette") and find_spec("uvicorn"):
            self._dashboard = start_dashboard(workspace=self._stage.workspace, environment=self._stage.environment)
        means = "with Spark" if self._settings.spark else "without Spark"
        display.say(f"driver started: process {self._driver.pid} reads the standard library {means}")
        self._watch(display)
        self._stop_workers(display)

    @property
    def report_path(self) -> Path:
        """Where the report goes."""
        return self._settings.report or self._stage.workspace / "report.md"

    @property
    def history_path(self) -> Path:
        """Where the history goes, with Spark: beside the report."""
        return self.report_path.with_suffix(".html")

    @property
    def run_path(self) -> Path:
        """Where the page of the run goes: beside the report."""
        return self.report_path.with_name(f"{self.report_path.stem}-run.html")

    def _announce_dashboard(self, display: Display) -> None:
        """Say where the dashboard is, once it listens."""
        if self._dashboard is None or self._announced:
            return
        if port := self._dashboard.find(LISTENS):
            self._announced = True
            display.say(f"the dashboard, while this runs: http://127.0.0.1:{port}/dashboard/")

    def write_run(self) -> None:
        """Write the page of the run."""
        victim = "" if self._victim is None else self._victim.name
        found = read_story(self._stage.database, self.killed_at, victim)
        files = read_snapshot(self._stage.database).closed
        self.run_path.write_text(render(found, files=files, lease=self._settings.lease), encoding="utf-8")

    def _start_worker(self, display: Display) -> None:
        number = len(self._workers) + 1
        worker = start_worker(
            number, self._settings, workspace=self._stage.workspace, environment=self._stage.environment
        )
        self._workers.append(worker)
        display.say(f"worker {worker.name} started: process {worker.pid}, {self._settings.concurrency} slots")

    def _watch(self, display: Display) -> None:
        reported = False
        while not self._over(snapshot := read_snapshot(self._stage.database)):
            phase = current_phase(snapshot, spark=self._settings.spark)
            display.update(snapshot, sum(worker.alive for worker in self._workers), phase)
            self._announce_dashboard(display)
            if snapshot.files and not reported:
                reported = True
                display.say(f"{snapshot.files} files found")
            if self._victim is None and snapshot.half_way:
                self._kill_one(display, snapshot)
            self._require_life()
            time.sleep(_LOOK_EVERY)
        display.say(f"all {snapshot.closed} files are done, and the report is written")

    def _over(self, snapshot: Snapshot) -> bool:
        return self._driver is not None and self._driver.exit_code == 0 and snapshot.open_chains == 0

    def _kill_one(self, display: Display, snapshot: Snapshot) -> None:
        """Kill the busiest worker, frozen first, so that it cannot finish what it holds while we look."""
        victim = max(self._workers, key=self._held_by)
        if not self._held_by(victim):
            return
        victim.send(signal.SIGSTOP)
        if not self._held_by(victim):
            victim.send(signal.SIGCONT)
            return
        victim.kill()
        self._victim = victim
        (self.killed_at,) = self._stage.database.row("SELECT clock_timestamp()")
        display.say(
            f"worker {victim.name} killed (SIGKILL) at {snapshot.closed} of {snapshot.files} files: "
            f"it held {self._held_by(victim)} running jobs"
        )
        self._start_worker(display)

    def _held_by(self, worker: Process) -> int:
        holders = self._stage.database.rows(_HOLDERS)
        return sum(count for holder, count in holders if holder.startswith(f"{worker.name}-"))

    def _require_life(self) -> None:
        """Checks that all processes are alive, except the victim and a driver that has finished."""
        for process in [*self._workers, *([self._driver] if self._driver else [])]:
            done = process is self._driver and process.exit_code == 0
            if not process.alive and not done and process is not self._victim:
                raise DemoError(_untimely_end(process))

    def _stop_workers(self, display: Display) -> None:
        for worker in self._workers:
            if worker is not self._victim:
                code = worker.stop()
                display.say(f"worker {worker.name} stopped: exit code {code}")
                self.unclean += [] if code == 0 else [worker.name]

    def _kill_all(self) -> None:
        for process in (*self._workers, self._driver, self._dashboard):
            if process is not None:
                process.kill()


def _untimely_end(process: Process) -> str:
    words = process.last_words() or "its log is empty"
    return f"{process.name} ended unexpectedly with exit code {process.exit_code}: {words}"


def _tell(settings: DemoSettings, stage: Stage, show: Show) -> int:
    """Print the findings, the figures and the proof; the exit code."""
    found = [Report.model_validate(output) for (output,) in stage.database.rows(_REPORT)]
    checks = run_checks(stage.database)
    for one in found:
        print(f"\nThe standard library: {one.files:,} files, {one.lines:,} lines, {one.symbols:,} symbols")
        print("\n".join(f"  {line}" for line in [*one.text.splitlines(), f"not Python: {one.unreadable} files"]))
    print(f"\nFigures\n{table(read_figures(stage.database, show.killed_at).lines())}")
    print(f"\nProof, by SQL (each must be 0)\n{verdict(checks)}")
    if settings.report is not None or settings.keep:
        show.write_run()
        print(f"\nreport: {show.report_path}\nrun: {show.run_path}")
        if settings.spark:
            print(f"history: {show.history_path}")
    if settings.keep:
        remove_temporary(stage)
        print(stage.how_to_look)
    return _exit_code(show, holds=bool(found) and all(check.holds for check in checks))


def _exit_code(show: Show, *, holds: bool) -> int:
    if show.killed_at is None:
        print("No worker was killed, because the work finished too early: raise --files.")
    for name in show.unclean:
        print(f"Worker {name} did not stop cleanly.")
    return Exit.DONE if holds and show.killed_at is not None and not show.unclean else Exit.FAILED
