"""What a local session is like, and what it reads of one job, in whatever time zone this process is."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from queuert.spark.session import local_session

SEEN = ("spark.python.task.killTimeout", "spark.sql.python.filterPushdown.enabled", "spark.driver.host")


def main(url: str) -> None:
    spark = local_session(1, settings={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.driver.memory": "512m"})
    frame = spark.read.format("queuert").option("url", url).option("columns", "id,created_at,input").load()
    [row] = frame.toArrow().to_pylist()
    jvm: Any = spark._jvm
    naive = frame.collect()[0]["created_at"]
    assert isinstance(naive, datetime)
    said = {
        "java": jvm.java.lang.System.getProperty("java.version"),
        "java_home": jvm.java.lang.System.getProperty("java.home"),
        "settings": {name: spark.conf.get(name) for name in SEEN},
        "mode": spark.sparkContext.getConf().get("spark.scheduler.mode"),
        "moment": row["created_at"].isoformat(),
        "local": naive.isoformat(),
        "day": str(frame.selectExpr("to_date(created_at)").collect()[0][0]),
        "udf": frame.rdd.map(lambda one: len(one["input"])).sum(),
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
