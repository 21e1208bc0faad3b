"""Owner 0x03: points in columns, rollups and queries.

::

    projection   TimeSeries: the projection; the leader's chores; listings
    commands     the operations, their bytes and their descriptions
    types        types of fields, policies, settings, downsampling rules
    names        names of series, and matchers that select them
    regex        regular expressions of matchers, without backtracking
    point_batch  many points of many series as arrays: the codec of a batch
    store        the state: measurements, series, pins, progress of rules
    columns      the points of one field of one series: buffer and blocks
    tag_index    which series have which value of which tag
    writes       writing a row or a batch
    deletes      deletes, retention, drops
    rollups      downsampling: the leader computes, apply stores
    read         blocks and buffer of a column as one sorted array
    query        plans and runs queries
    aggregate    aggregates over windows of time
    hashing      the state hash of points and blocks, by arrays
    snapshot     the section of a snapshot, and the check of a whole store
    limits       every bound

Begin with ``TimeSeries`` in ``projection``, then ``store`` and ``writes``; for reads, ``query``.
The router and shard_state import it, and above them ``snapshot`` and ``node``; it imports no other
model, and publishes metadata as keys through the Protocol ``DerivedKeys``.
"""
