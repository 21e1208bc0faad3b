"""Exports of the log to files, with receipts that prove what they hold.

What is here::

    job             an export from its beginning to its receipt, on the driver
    plan            what an export does: contents, ranges, splits
    files           what a task writes: the files of a split
    text            Arrow columns as JSON lines and CSV
    target          where an export is written: a directory; object_target: an object store
    journal         what an unfinished export has planned and done
    receipt         what an export wrote
    mix             a number that identifies the entries of a file
    verify          compares an export with its receipts and with the log
    delta, iceberg  the files as a Delta or Iceberg table
    spark_runner    runs tasks on Spark; the only module that needs it

It may import the rest of ``onelog.spark``; ``onelog export``, ``python -m onelog.spark.export`` and
``onelog.spark.since`` import it. Begin with ``job``, then ``files`` and ``receipt``.
"""
