"""The log, its state and its changes as Spark tables; exports; writers.

::

    from onelog.spark import register

    register(spark)
    spark.read.format("onelog").option("view", "log").load("/var/lib/onelog")

What is here::

    source          format("onelog"): connects reads, streams and writes to Spark
    options         the options of a read, parsed and checked
    table           views of entries: a loaded read, its cut and its ranges
    state           views of the state at the cut, at an index or at a log time
    changes         views of what entries changed, by replay
    streaming       micro-batches; offsets says how far a query has read, and proves it
    since           reads that continue behind the receipt of an export
    writer          df.write and df.writeStream

    origin          where entries come from: what the next two have in common
    directory       files of a data directory; places, shard_files and pieces find and read them
    endpoint        a running cluster
    past            the state of a shard at an index, for state and changes
    series_points   the points of that state, for the view timeseries

    session         a Spark session, and what keeps one from starting
    workers         what keeps tasks from running on executors; the zip of our code for them
    faults          errors of files as errors of the API

    columns/        bytes of the log as Arrow columns, without Spark
    export/         files that prove themselves: onelog export
    load/           rows into the database, each once: writers and onelog import

Begin with ``columns/__init__``, then ``origin``, ``table`` and ``source``. This package may import
``onelog.client``, ``onelog.snapshot``, ``onelog.projections`` and ``onelog.ual``; only the commands
of ``onelog.cli`` import it. The folder is ``spark/``, and ``onelog/spark`` is a link to it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.spark.source import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    """Import ``register`` on first use: executors import ``columns`` without Spark."""
    if name == "register":
        from onelog.spark.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
