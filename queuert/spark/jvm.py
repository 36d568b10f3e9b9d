"""The way from pyspark to Java, for which it has no public names. Sessions of Spark Connect have none."""

from __future__ import annotations

from typing import Any, NamedTuple


class Java(NamedTuple):
    """Objects of Java's, as py4j shows them.

    Attributes:
        classes: the entry to all classes.
        session: the session.
        context: the context of the session, in Java's own wrapping.
        gateway: through which Java calls Python back.
    """

    classes: Any
    session: Any
    context: Any
    gateway: Any


def java_of(spark: Any) -> Java | None:
    """Java's objects of a session; None in Spark Connect, or if this version of pyspark lacks one of them."""
    classes = getattr(spark, "_jvm", None)
    if classes is None:
        return None
    context = spark.sparkContext
    java = Java(
        classes,
        getattr(spark, "_jsparkSession", None),
        getattr(context, "_jsc", None),
        getattr(context, "_gateway", None),
    )
    return None if None in java else java
