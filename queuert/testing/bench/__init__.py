"""``queuert dev bench`` measures Queuert and bare SQL through the same driver, on your database.

A run creates a schema and drops it at the end, also when it is interrupted.
"""

from queuert.testing.bench.measuring import BenchSettings, run
from queuert.testing.bench.report import BenchReport, Figure

__all__ = ["BenchReport", "BenchSettings", "Figure", "run"]
