"""Raft groups over the log, on pysyncobj.

::

    config       RaftConfig, ShippingConfig, Protections: times and limits
    errors       everything that replication refuses or reports, as one tree
    log_time     LogTime: the clock that leases, delays and expiries follow
    raft/        one member of a group: elections, the journal, reads, catching up; no I/O
    transport/   connections between processes, and the bytes on them

Begin with ``raft.messages``, ``raft.journal``, ``raft.member``, ``raft.reads``. ``node`` imports
this package; it imports ``projections`` and ``ual``. docs/replication.md has the arguments for
safety.
"""
