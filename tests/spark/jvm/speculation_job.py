"""A write with one task that is slow, so that Spark runs a copy of it beside it.

``spark-submit … speculation_job.py '{"endpoint": …, "stream": …, "folder": …, "rows": …}'``

Attempts meet by files in the folder: the first attempt of partition 0 stops in its midst until its
copy has begun, then both write. Partition 1 ends when the test has seen rows of partition 0:
Spark makes copies only when other tasks have ended.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

WAIT_S = 200


def main() -> None:
    """Write the rows of two partitions into a stream."""
    asked = json.loads(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from onelog.spark import register

    register(spark)
    numbers = spark.sparkContext.range(0, 2 * asked["rows"], numSlices=2)
    rows = numbers.mapPartitions(hold(asked["folder"], asked["rows"]))
    writer = spark.createDataFrame(rows, "value STRING").write.format("onelog").mode("append")
    writer.options(
        endpoint=asked["endpoint"], to="stream", stream=asked["stream"], job="twice"
    ).save()
    spark.stop()
    sys.stdout.write(json.dumps({}) + "\n")


def hold(folder: str, count: int) -> Callable[[Iterable[int]], Iterator[tuple[str]]]:
    """Return what makes rows of numbers, with attempts that wait for each other."""
    before = count // 2

    def wait_for(name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not (Path(folder) / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.05)

    def make_rows(numbers: Iterable[int]) -> Iterator[tuple[str]]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (Path(folder) / f"attempt-{partition}-{attempt}").touch()
        if partition == 1:
            wait_for("seen")
        for at, number in enumerate(numbers):
            if (partition, attempt, at) == (0, 0, before):
                wait_for("attempt-0-1")
            yield (f"{number:0200}",)

    return make_rows


if __name__ == "__main__":
    main()
