"""Bytes of the log as Arrow columns: no loop over rows, no Spark, no server.

What is here may import ``ual``, numpy, pyarrow, zstandard and crc32c, and nothing else, so that a
small zip takes it to executors. Begin with ``block`` (verified entries as arrays), then ``fields``
(reads one field of many payloads at once), ``arrays`` (spans of bytes to Arrow) and ``view``
(what a view is). Each view has one module: ``log`` is the simplest.
"""
