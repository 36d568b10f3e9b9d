"""Tunes garbage collection in the Python processes that Spark uses again and again."""

from __future__ import annotations

import gc
import os


def spare_the_loaded() -> None:
    """Exclude the modules that are loaded by now from garbage collection, in a process that Spark reuses.

    Spark runs a collection in such a process after each use. Modules, which never become garbage, would be searched
    every time, and that takes longer than everything else that the process does for a read of few rows.
    """
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.freeze()
