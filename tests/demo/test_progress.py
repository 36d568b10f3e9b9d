"""How the demo shows how far it is."""

import io
import sys
from dataclasses import replace

import pytest

from queuert.demo.progress import LiveDisplay, PlainDisplay, Snapshot, choose_display, current_phase, line

SNAPSHOT = Snapshot(
    files=60, started=60, closed=29, open_chains=32, ready=20, running=11, done=61, retried=8, lost_leases=7
)


def test_half_way_is_half_of_the_files() -> None:
    assert not Snapshot().half_way
    assert not SNAPSHOT.half_way
    assert replace(SNAPSHOT, closed=30).half_way
    assert Snapshot(files=1).half_way


def test_plain_lines_come_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    with PlainDisplay(clock=lambda: now[0]) as display:
        for tick in range(25):
            now[0] = 100.0 + tick / 10
            display.update(SNAPSHOT, 2)
        display.say("the end")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"  1.0 s  {line(SNAPSHOT, 2)}", f"  2.0 s  {line(SNAPSHOT, 2)}", "  2.4 s  the end"]
    assert "chains 29/60" in lines[0]
    assert "lost leases 7" in lines[0]


@pytest.mark.parametrize(
    ("snapshot", "phase"),
    [
        (Snapshot(), "Spark is starting, to read the files"),
        (Snapshot(files=60), "Spark is writing a chain for each of 60 files"),
        (replace(SNAPSHOT, started=1), ""),
        (SNAPSHOT, ""),
        (replace(SNAPSHOT, closed=60), ""),
        (replace(SNAPSHOT, closed=60, open_chains=0), "Spark is summing up the answers and writing the history"),
    ],
    ids=["starting", "writing", "written in part", "half way", "the report is missing", "all done"],
)
def test_while_the_numbers_stand_still_it_says_what_happens(snapshot: Snapshot, phase: str) -> None:
    assert current_phase(snapshot, spark=True) == phase
    shown = line(snapshot, 2, phase)
    assert shown.startswith(phase or "chains ")
    assert shown.endswith("workers 2")


def test_without_spark_it_does_not_speak_of_it() -> None:
    assert current_phase(Snapshot(), spark=False) == "the driver is starting, to read the files"
    assert "the driver is writing a chain" in current_phase(Snapshot(files=60), spark=False)
    assert current_phase(replace(SNAPSHOT, closed=60, open_chains=0), spark=False) == ""


def test_without_a_terminal_it_is_plain() -> None:
    assert isinstance(choose_display(), PlainDisplay)


@pytest.mark.parametrize("terminal", ["dumb", "unknown", None])
def test_on_a_terminal_without_a_cursor_it_is_plain(terminal: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live display would draw nothing there."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    if terminal is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", terminal)
    assert isinstance(choose_display(), PlainDisplay)


def test_live_it_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    console = pytest.importorskip("rich.console")
    output = io.StringIO()
    # Whatever terminal the tests run on.
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    with LiveDisplay(console.Console(file=output, force_terminal=True, width=100, highlight=False)) as display:
        display.update(SNAPSHOT, 2)
        display.say("[half] way")
        display.update(SNAPSHOT, 2, "Spark is [busy]")
    text = output.getvalue()
    assert "Spark is [busy]" in text
    assert "29/60" in text
    assert "lost leases" in text
    assert "s\x1b[0m  [half] way" in text
    assert "dim" not in text
    assert "\x1b[?25h" in text, "the cursor must be visible again"
