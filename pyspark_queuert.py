"""Lets Spark find the data source ``queuert`` by itself: it looks into every module that is called ``pyspark_...``.

It must never raise: one module that does hides the Python data sources of all of them. Without this, or where Spark
does not look, :func:`queuert.spark.register` does the same.
"""

try:
    from queuert.spark.datasource import QueuertDataSource as DefaultSource
except Exception:  # an old pyspark, or none of what it needs: whoever asks for the source is told that there is none
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
