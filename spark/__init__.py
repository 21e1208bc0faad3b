"""The log, its state and its past as Spark tables; users import it as ``onelog.spark``.

Where to begin reading: ``columns`` turns bytes of the log into Arrow, with no import of Spark or of
the server.

The folder is ``spark/`` and the package is ``onelog.spark``: ``onelog/spark`` is a link to it.
"""
