"""Segments, the files of the log: their bytes, tables, sealing, checks and exchange.

::

    format     bytes of the header and footer, file names
    tables     the tables of a sealed file: offsets, sparse, times, streams, voids
    unsealed   UnsealedSegment: a file that grows
    sealing    write tables and footer; compaction
    sealed     SealedSegment, DamagedSegment: files that never change
    chain      SegmentSet: all segments of a shard, in order
    notes      what apply noted about entries (streams, voids) until their segment is sealed
    exchange   pieces of segments for a peer, and joining them again
    check      every rule of one sealed file, for verification

Begin with ``format``. ``ual.log`` and ``ual.recovery`` build on this package; it imports only
``entry``, ``errors``, ``files``, ``manifest`` and ``log_config``.
"""
