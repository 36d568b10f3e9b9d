"""Handlers that run Spark: the Spark work of an attempt is cancelled together with the attempt."""
