"""A driver of one query into Parquet, which tests start, kill and start again.

``python query_job.py '{"master": …, "options": {…}, "folder": …, "kind": "follow"}'``

A stream follows the log, or ends with what is there (``available``); ``batch`` is a batch read.
"""

import json
import sys
from pathlib import Path

from onelog.spark import register
from onelog.spark.session import start_session

# Nothing here runs for long enough to be worth compiling well.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    """Write the rows of the query into the table of its folder."""
    asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    spark = start_session(
        master=asked["master"],
        app_name="query job",
        settings={
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JAVA,
            "spark.executor.extraJavaOptions": JAVA,
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "scratch"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    kind, options, table = asked["kind"], asked["options"], str(folder / "table")
    if kind == "batch":
        spark.read.format("onelog").options(**options).load().write.parquet(table)
        return
    if kind == "available":
        options.pop("max_rows", None)  # what is left in one batch: a limit may change
    source = spark.readStream.format("onelog").options(**options).load()
    written = (
        source.writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    if kind == "available":
        written = written.trigger(availableNow=True)
    else:
        written = written.trigger(processingTime="0 seconds")
    written.start().awaitTermination()


if __name__ == "__main__":
    main()
