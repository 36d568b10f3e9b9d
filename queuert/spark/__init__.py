"""Spark beside the queue. Only this package and the demo import pyspark: install it with ``queuert[spark]``."""
