"""For the processes that Spark starts for Python: pyspark from where it is installed, and compiled.

Spark puts a zip of it first, of which each process compiles anew what it imports: a third of a second of a processor.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("/pyspark/python/lib/pyspark.zip")]
