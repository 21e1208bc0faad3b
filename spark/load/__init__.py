"""Rows into the database, each exactly once: what Spark's writers and ``onelog import`` share.

``columns`` brings rows into one form, ``targets`` knows what keys, streams, queues and series need,
``progress`` is what the database remembers of a job, ``chunks`` writes.
"""
