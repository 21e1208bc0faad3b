"""Exports of the log to files that prove themselves.

``job`` is an export from its beginning to its receipt; ``files`` is what a task writes; ``target``
is where it goes; ``receipt`` and ``journal`` are the two files that an export keeps of itself;
``verify`` compares them with the files and with the log. ``spark_runner`` is the only module that
needs Spark.
"""
