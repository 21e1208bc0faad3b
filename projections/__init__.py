"""Projections: state that follows from the log, and nothing else.

::

    router.py      ProjectionRouter: apply, apply_group, due, state_hash, dump, load, check
    table.py       build_projections: which projections there are
    projection.py  the Protocols: Projection, SpillStore, Notes, and what passes between them

    result.py  reasons.py  errors.py  limits.py      what apply says, and its bounds
    payload.py                                       the prefix of payloads, bounded reading
    section.py                                       bounded reading and writing of snapshots
    state_hash.py  deadlines.py  undo.py             machinery that projections share

    system.py  system_commands.py                    owner 0x00: time, sessions, namespaces
    sessions.py  namespaces.py  batch.py  runs.py
    kv.py                                            owner 0x01: the KV projection
    kv_commands.py  conditions.py                    its commands and their bytes
    kv_record.py  kv_store.py  kv_order.py           records, namespaces of keys, ordered index
    kv_plain.py  kv_ring.py                          plain puts in one loop, and in place
    kv_values.py  kv_evict.py                        values beside the records, and moving them out
    kv_leases.py  kv_operations.py  kv_json.py       leases; what each command does
    kv_transaction.py  kv_reads.py  kv_section.py    compare/then/else; reads; snapshot section
    kv_describe.py  system_describe.py               a line about an entry, for people

    queue.py    queue_*.py                           owner 0x02: docs/queue.md
    timeseries.py  ts_*.py                           owner 0x03: docs/timeseries.md
    stream.py   stream_*.py                          owner 0x04: docs/streams.md

Nothing here reads a clock, draws a random number, does I/O or starts a task: time and identity
come with the entry, disks come as a Protocol. Iteration is over insertion order or sorted.
"""
