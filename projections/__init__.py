"""Projections: state that follows from the log, and nothing else.

::

    router.py      ProjectionRouter: apply, apply_group, due, state_hash, dump, load, check
    table.py       build_projections: which projections there are
    projection.py  Projection, Handler, Operation, SpillStore, Notes: what passes between them

    result.py  reasons.py  errors.py  limits.py      what apply says, and its bounds
    payload.py                                       the prefix of payloads, bounded reading
    section.py                                       bounded reading and writing of snapshots
    state_hash.py  deadlines.py  undo.py             machinery that projections share

    system.py  system_commands.py                    owner 0x00: time, sessions, namespaces
    sessions.py  namespaces.py  batch.py  replies.py
    kv.py                                            owner 0x01: the KV projection
    kv_commands.py  conditions.py  kv_json.py        its operations: bytes, execution, description
    kv_store.py  kv_record.py  kv_ring.py            the loop that writes versions, and records
    kv_order.py  kv_leases.py                        ordered index; leases
    kv_values.py  kv_evict.py                        values beside the records, and moving them out
    kv_changes.py  kv_reads.py  kv_section.py        recent changes; reads; snapshot section
    system_describe.py                               a line about a system entry, for people

    queue.py    queue_*.py                           owner 0x02: docs/queue.md
    timeseries.py  ts_*.py                           owner 0x03: docs/timeseries.md
    stream.py   stream_*.py                          owner 0x04: docs/streams.md

Nothing here reads a clock, draws a random number, does I/O or starts a task: time and identity
come with the entry, disks come as a Protocol. Iteration is over insertion order or sorted.
"""
