"""Projections: pure state machines that turn entries of the log into state.

::

    router        ProjectionRouter: apply, apply_group, due, state_hash, dump, load, check
    shard_state   build_projections: creates all projections of a shard and connects them
    projection    the Protocols: Projection, SpillStore, Notes; Operation, the registry's row
    result        what apply returns: Applied, Refused, Duplicate, Skipped, Pending
    reasons       the stable reason of each refusal, and its text
    errors        exceptions
    limits        every bound that apply enforces
    codec         payload prefixes and snapshot sections, read with bounds
    conditions    conditions on keys, for transactions and batches
    namespaces    the namespaces of a shard and their limits
    deadlines     a heap of ids by time
    undo          the undo log of batches and transactions
    state_hash    the hash by which replicas are compared
    describe      one readable line about any entry

    system/       owner 0x00: time, sessions, namespaces, holds (docs/payloads.md)
    kv/           owner 0x01: keys (docs/payloads.md)
    queue/        owner 0x02: messages (docs/queue.md)
    timeseries/   owner 0x03: points (docs/timeseries.md)
    stream/       owner 0x04: records and consumer groups (docs/streams.md)

Each model is a package with the same shape: ``projection`` implements the Protocol, ``commands``
has the operations and their bytes, ``store`` or ``state`` the state, ``reads`` the queries,
``snapshot`` the section, ``limits`` the bounds. The models do not import each other.

Begin reading with ``router``, then ``projection``, then one model; ``kv`` is the simplest.

This package imports ``ual`` only. ``snapshot``, ``cluster`` and ``node`` import it, and the
command line imports ``describe``. Nothing here reads a clock, draws a random number, does I/O or
starts a task. Time and identity come with the entry, disks come as a Protocol. Iteration is in
insertion order or sorted, never over a bare set, so that every replica computes the same.
"""
