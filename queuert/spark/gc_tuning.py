"""Spark's processes of Python, which it uses again and again: for tasks, and for what it asks a data source."""

from __future__ import annotations

import gc
import os


def spare_the_loaded() -> None:
    """Leave what is loaded by now out of the search for garbage, in a process that Spark uses again; elsewhere nothing.

    Spark has each of them search after each use. Modules, of which there is no garbage, would be searched every time,
    and that takes longer than all else that a process does for a read of few rows.
    """
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.freeze()
