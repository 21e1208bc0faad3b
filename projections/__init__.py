"""Projections: state that follows from the log, and nothing else.

::

    router        ProjectionRouter: apply, apply_group, due, state_hash, dump, load, check
    shard_state   build_projections: which projections there are
    projection    the Protocols: Projection, SpillStore, Notes, and what passes between them

    result, reasons, errors, limits    what apply says, and its bounds
    codec                              prefixes of payloads, sections of snapshots: bounded reading
    conditions, namespaces             what several models have in common
    state_hash, deadlines, undo        machinery that projections share
    describe                           a line about an entry, for people

    system/       owner 0x00: time, sessions, namespaces, holds
    kv/           owner 0x01: docs/payloads.md
    queue/        owner 0x02: docs/queue.md
    timeseries/   owner 0x03: docs/timeseries.md
    stream/       owner 0x04: docs/streams.md

A model is a package: ``projection`` applies, ``commands`` has the bytes, ``operations`` what each
command does, ``store`` the state, ``reads`` the questions, ``snapshot`` its section. The models do
not import each other.

Nothing here reads a clock, draws a random number, does I/O or starts a task: time and identity
come with the entry, disks come as a Protocol. Iteration is over insertion order or sorted.
"""
