"""The log, its state and its past as Spark tables; users import it as ``onelog.spark``.

Where to begin reading: ``columns`` turns bytes of the log into Arrow, with no import of Spark or of
the server; ``origin`` says what directories and clusters have in common; ``table`` is a read that
was loaded, and ``source`` shows it to Spark::

    from onelog.spark import register

    register(spark)
    spark.read.format("onelog").option("view", "log").load("/var/lib/onelog")

The folder is ``spark/`` and the package is ``onelog.spark``: ``onelog/spark`` is a link to it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.spark.source import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    """Import what users ask for; executors import columns without Spark."""
    if name == "register":
        from onelog.spark.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
