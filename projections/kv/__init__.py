"""Owner 0x01: keys with versions, lifetimes and leases.

::

    projection   KV: the projection; expiry, derived keys, batches
    commands     the operations: their bytes, what each does, their descriptions, the registry
    store        the keys of one namespace; write_versions is the loop that writes
    record       all versions of one key in one bytes object; rings; large values
    documents    reading and changing one field of a JSON value
    reads        get, history, scan, count; now or as of an index
    changes      what recent entries did, for watches; not state
    eviction     moving values to the spill store
    snapshot     the section of a snapshot

Begin with ``KV_OPERATIONS`` at the end of ``commands``, then ``Store.write_versions``. The router
and shard_state import it, and above them ``snapshot`` and ``node``; it imports no other model.
"""
