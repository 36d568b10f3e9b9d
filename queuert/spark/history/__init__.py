"""The history of a queue: rollups of the event log, an archive of closed chains, and a report, by Spark.

:func:`run_history` does all of it; ``queuert history`` is the same for the command line. Importing the package does not
need pyspark: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuert.spark.errors import HistoryBusyError as HistoryBusyError
    from queuert.spark.errors import HistoryOutputError as HistoryOutputError
    from queuert.spark.history.pipeline import HistoryResult as HistoryResult
    from queuert.spark.history.pipeline import run_archive as run_archive
    from queuert.spark.history.pipeline import run_history as run_history
    from queuert.spark.history.pipeline import run_report as run_report
    from queuert.spark.history.pipeline import run_rollup as run_rollup
    from queuert.spark.history.results import ArchiveResult as ArchiveResult
    from queuert.spark.history.results import Progress as Progress
    from queuert.spark.history.results import RollupResult as RollupResult

_HOME = {
    "ArchiveResult": "results",
    "HistoryBusyError": "queuert.spark.errors",
    "HistoryOutputError": "queuert.spark.errors",
    "HistoryResult": "pipeline",
    "Progress": "results",
    "RollupResult": "results",
    "run_archive": "pipeline",
    "run_report": "pipeline",
    "run_rollup": "pipeline",
    "run_history": "pipeline",
}

__all__ = [
    "ArchiveResult",
    "HistoryBusyError",
    "HistoryOutputError",
    "HistoryResult",
    "Progress",
    "RollupResult",
    "run_archive",
    "run_report",
    "run_rollup",
    "run_history",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    return getattr(import_module(home if "." in home else f"{__name__}.{home}"), name)
