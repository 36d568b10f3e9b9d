"""A DataFrame as jobs: all rows or none, however often the program is repeated.

Needs ``queuert[spark]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.spark_batch_sink``.
"""

from __future__ import annotations

import os
import tempfile

from pydantic import BaseModel, Field

from queuert import JobType
from queuert.spark import enqueue, local_session
from queuert.spark.errors import BadRowsError


class Order(BaseModel):
    customer: str
    amount: float = Field(gt=0)


bill = JobType("bill_customer", input=Order, output=None)


def main() -> None:
    spark = local_session(2, settings={"spark.log.level": "OFF"})
    orders = spark.createDataFrame(
        [("order 1", "Ann", 12.5, 0), ("order 2", "Bob", 3.0, 5), ("order 3", "Cid", -1.0, 0)],
        "id string, customer string, amount double, priority int",
    )
    url = os.environ["QUEUERT_URL"]
    try:
        enqueue(orders, bill, url=url)
    except BadRowsError as error:
        print(str(error).partition(" [")[0])

    with tempfile.TemporaryDirectory() as rejects:
        for _ in range(2):
            result = enqueue(orders, bill, url=url, write_id="orders of May", rejects=rejects)
            print(f"{result.started} of {result.rows + result.rejected} rows are jobs")
        for row in spark.read.parquet(rejects).collect():
            print(f"{row.id} is not: {row.rejected_because.partition(' [')[0]}")
    spark.stop()


if __name__ == "__main__":
    main()
