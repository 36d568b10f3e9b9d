"""The progress of a run: read from the tables, shown live on a terminal, else once a second as a line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, Protocol, Self

from queuert.demo.database import Database

_SNAPSHOT: Final = """
SELECT
    coalesce((SELECT max(files) FROM queuert_demo.plan), 0),
    count(*) FILTER (WHERE chain_index = 0 AND type = 'measure'),
    count(*) FILTER (WHERE chain_status <> 'open' AND type = 'measure'),
    count(*) FILTER (WHERE chain_status = 'open'),
    count(*) FILTER (WHERE status IN ('ready', 'scheduled')),
    count(*) FILTER (WHERE status = 'running'),
    count(*) FILTER (WHERE status IN ('completed', 'continued')),
    coalesce(sum(greatest(attempt - 1, 0)), 0),
    coalesce(sum(lease_expirations), 0)
FROM queuert_demo.job
"""

_LINE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of all jobs at one moment. ``files`` is 0 until the driver has counted them."""

    files: int = 0
    started: int = 0
    closed: int = 0
    open_chains: int = 0
    ready: int = 0
    running: int = 0
    done: int = 0
    retried: int = 0
    lost_leases: int = 0

    @property
    def half_way(self) -> bool:
        """Whether half of the files are done."""
        return self.files > 0 and self.closed >= self.files // 2

    @property
    def all_done(self) -> bool:
        """Whether all files are, and the report is written that waits for them."""
        return 0 < self.files <= self.closed and self.open_chains == 0


def current_phase(snapshot: Snapshot, *, spark: bool) -> str:
    """What happens while no number changes, in words; empty while they do."""
    who = "Spark" if spark else "the driver"
    if snapshot.files == 0:
        return f"{who} is starting, to read the files"
    if snapshot.started == 0:
        return f"{who} is writing a chain for each of {snapshot.files} files"
    if snapshot.all_done and spark:
        return "Spark is summing up the answers and writing the history"
    return ""


def read_snapshot(database: Database) -> Snapshot:
    """Look at the jobs."""
    return Snapshot(*map(int, database.row(_SNAPSHOT)))


class Display(Protocol):
    """Where progress is shown; used by ``with``."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None:
        """Tell of something that happened."""
        ...

    def update(self, snapshot: Snapshot, workers: int, phase: str = "") -> None:
        """Show how far it is, and what happens now where the numbers do not say it."""
        ...


def choose_display() -> Display:
    """The live one on a terminal that can move its cursor, if the package rich is there."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb").lower() in ("dumb", "unknown"):
        return PlainDisplay()
    if find_spec("rich") is None:
        print("For a live display: pip install 'queuert[embedded]'")
        return PlainDisplay()
    return LiveDisplay()


class PlainDisplay:
    """Lines of text."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._last = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print it, with the time."""
        print(f"{self._clock() - self._began:5.1f} s  {text}", flush=True)

    def update(self, snapshot: Snapshot, workers: int, phase: str = "") -> None:
        """Print a line, if the last was a second ago."""
        if self._clock() - self._last >= _LINE_EVERY:
            self._last = self._clock()
            self.say(line(snapshot, workers, phase))


def line(snapshot: Snapshot, workers: int, phase: str = "") -> str:
    """The state in one line: the phase, or the numbers if there is none."""
    if phase:
        return f"{phase}  workers {workers}"
    return (
        f"chains {snapshot.closed}/{snapshot.files}  ready {snapshot.ready}  running {snapshot.running}  "
        f"done {snapshot.done}  retried {snapshot.retried}  lost leases {snapshot.lost_leases}  workers {workers}"
    )


class LiveDisplay:
    """A bar and the numbers, redrawn in place."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=12, transient=True)
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Print it above the bar."""
        from rich.text import Text

        # In one piece: the drawing below is redrawn after each.
        self._console.print(Text.assemble((f"{time.monotonic() - self._began:5.1f} s", "dim"), "  ", text))

    def update(self, snapshot: Snapshot, workers: int, phase: str = "") -> None:
        """Redraw."""
        self._live.update(self._drawing(snapshot, workers, phase))

    def _drawing(self, snapshot: Snapshot, workers: int, phase: str) -> Any:
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(total=max(snapshot.files, 1), completed=snapshot.closed, width=60)
        numbers = Table.grid(padding=(0, 3))
        shown = {
            "chains": f"{snapshot.closed}/{snapshot.files}",
            "ready": snapshot.ready,
            "running": snapshot.running,
            "done": snapshot.done,
            "retried": snapshot.retried,
            "lost leases": snapshot.lost_leases,
            "workers": workers,
        }
        numbers.add_row(*(Text(name, "dim") for name in shown))
        numbers.add_row(*(Text(str(value), "bold") for value in shown.values()))
        # The bar alone ends no line.
        return Group(Padding(bar, (1, 0, 0, 0)), numbers, *([Text(phase)] if phase else []))
