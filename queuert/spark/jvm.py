"""Access from pyspark to Java objects, which pyspark does not make public. Spark Connect has none."""

from __future__ import annotations

from typing import Any, NamedTuple


class Java(NamedTuple):
    """Java objects, as py4j represents them.

    Attributes:
        classes: the entry to all classes.
        session: the session.
        context: the Java context of the session.
        gateway: the gateway through which Java calls Python.
    """

    classes: Any
    session: Any
    context: Any
    gateway: Any


def java_of(spark: Any) -> Java | None:
    """Return the Java objects of a session; None in Spark Connect, or if this version of pyspark lacks one of them."""
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
