"""A job as users submit it: it prints the rows of some tables as one line of JSON.

``spark-submit --py-files onelog-spark.zip cluster_job.py '[{"view": "log", "path": …}, …]'``
"""

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Read each table that the argument asks for."""
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from onelog.errors import OnelogError
    from onelog.spark import register

    try:
        register(spark)
        tables = []
        for options in json.loads(sys.argv[1]):
            frame = spark.read.format("onelog").options(**options).load()
            tables.append([row[0] for row in frame.selectExpr("to_json(struct(*))").collect()])
        places = spark.sparkContext.parallelize(range(2), 2).map(lambda _: where()).collect()
        said: dict[str, object] = {"places": sorted(set(places)), "tables": tables}
    except OnelogError as error:
        said = {"error": str(error)}
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(said) + "\n")


def where() -> str:
    """Return the file from which a worker imports the project."""
    import onelog

    return str(onelog.__file__)


if __name__ == "__main__":
    main()
