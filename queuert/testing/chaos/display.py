"""Shows the progress of a run: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY = 5.0


class Display:
    """Shows progress; with ``quiet`` it shows nothing."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._said = 0.0
        self._once: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line that remains."""
        if not self._quiet:
            self._stream.write(f"{self._wipe()}{text}\n")
            self._stream.flush()

    def say_once(self, text: str) -> None:
        """Print the line, unless it was printed before."""
        if text not in self._once:
            self._once.add(text)
            self.say(text)

    def progress(self, text: str) -> None:
        """Show the progress: replace the line on a terminal, print a line now and then elsewhere."""
        if self._live:
            self._stream.write(f"{self._wipe()}{text}")
            self._stream.flush()
        elif not self._quiet and time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            self.say(text)

    def _wipe(self) -> str:
        return "\r\x1b[K" if self._live else ""
