"""Owner 0x04: streams of records, and consumer groups.

::

    projection   Stream: the projection; expiry of members, retention, dead letters, batches
    commands     the operations and their bytes: streams, records, consumer groups
    operations   what each command does
    state        StreamState, Streams: one stream, all streams; producers; deleted streams
    partition    counters of one partition, and what retention may trim
    groups       Group: cursors, members, assignment, pending records
    tables       the tables that the state is made of: hashed, and undone by batches
    reads        descriptions from the state, pages of records from a log
    snapshot     the section of a snapshot
    limits       every bound, and the ids of partitions

Begin with ``append_span`` in ``operations``, then ``state`` and ``groups``. The router and
shard_state import it, and above them ``snapshot`` and ``node``; it imports no other model, and
publishes cursors as keys through the Protocol ``DerivedKeys``.
"""
