"""Writes rows into the database, each exactly once, for Spark's writers and ``onelog import``.

What is here::

    settings        the options of a write
    columns         brings columns into one canonical form, and digests rows
    targets, series what rows become: keys, records, messages; points
    chunks          the rows of one partition, divided by shard and into chunks
    shard_writer    the chunks of one shard: sends, retries, recognises what is already written
    progress        the keys in which the database remembers a job
    importing       an import of files, with its receipt; files finds and reads them

It may import ``onelog.client`` and ``onelog.spark.columns``, but not Spark; ``onelog.spark.writer``
and ``onelog import`` import it. Begin with ``progress``, which is the idea, then ``chunks``.
"""
