"""Handlers that run Spark: an attempt and its Spark work stop together."""
