"""Bytes of the log as Arrow columns: no loop over rows, no Spark, no server.

What is here::

    block               verified entries as arrays
    fields              reads one field of many payloads at once
    arrays              numpy arrays and spans of bytes as Arrow arrays
    view, views         what a view is; all views of entries by name
    selection           which entries and rows a reader wants
    operations          names of owners and operations
    operands, headers   operands of queue and stream operations as columns; headers as maps

    log                 the view log
    kv, kv_bodies       the view kv_operations
    queue               the view queue_operations
    stream              the view stream
    stream_operations   the view stream_operations
    timeseries, points, timeseries_operands, series_names    the view timeseries_operations

    sections            sections of a snapshot as tables; section_bytes reads their bytes
    kv_section, queue_section, stream_section, series_section    one owner each

This package may import ``onelog.ual``, numpy, pyarrow, zstandard and crc32c, and nothing else, so
that a small zip is all that executors need. Everything else in ``onelog.spark`` may import it.
Begin with ``block``, ``fields``, ``arrays`` and ``view``; ``log`` is the simplest view.
"""
