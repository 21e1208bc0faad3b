"""Owner 0x02: queues with leases, retries and dead letters.

::

    projection   Queue: the projection; expiry, schedules, batches
    commands     the operations: their bytes, what each does, the registry
    store        QueueState: one queue; its totals, dedup window, schedules, redrives
    table        the messages of a queue in packed columns; rows; message groups
    ready        which message is next: priority, age, tenants
    deadlines    the ends of leases, delays and lifetimes, packed
    message      what a producer sends; a queue's settings; the results of leases and acks
    cron         the next minute of a cron expression
    reads        names, settings, counts, peek
    changes      what recent entries did, for watches; not state
    snapshot     the section of a snapshot
    limits       every bound

Begin with ``QUEUE_OPERATIONS`` at the end of ``commands``, then ``QueueState`` in ``store``. The
router and shard_state import it, and above them ``snapshot`` and ``node``; it imports no other
model.
"""
