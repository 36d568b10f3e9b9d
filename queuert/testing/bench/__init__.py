"""What ``queuert dev bench`` measures: this library beside bare SQL through the same driver, on a database of yours.

All of it happens in a schema that is made for the run and dropped at its end, however that comes.
"""

from queuert.testing.bench.measuring import BenchSettings, run
from queuert.testing.bench.report import BenchReport, Figure

__all__ = ["BenchReport", "BenchSettings", "Figure", "run"]
