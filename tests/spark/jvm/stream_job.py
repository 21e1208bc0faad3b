"""A driver of one streaming query into Parquet, which tests start, kill and start again.

``python stream_job.py '{"master": …, "options": {…}, "folder": …, "ends": false}'``
"""

import json
import sys
from pathlib import Path

from onelog.spark.session import start_session

# Nothing here runs for long enough to be worth compiling well.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    """Follow the log, or read what is there and end."""
    asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    spark = start_session(
        master=asked["master"],
        app_name="stream job",
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
    options = asked["options"]
    if asked["ends"]:
        options.pop("max_rows", None)  # what is left in one batch: a limit may change
    source = spark.readStream.format("onelog").options(**options).load()
    written = (
        source.writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    if asked["ends"]:
        written = written.trigger(availableNow=True)
    else:
        written = written.trigger(processingTime="0 seconds")
    written.start().awaitTermination()


if __name__ == "__main__":
    main()
