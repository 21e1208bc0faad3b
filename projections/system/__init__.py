"""Owner 0x00: time, sessions, namespaces, holds and the membership of the Raft group.

::

    projection   System: applies system entries; expires what is due in all projections
    commands     the operations, their bytes and their descriptions
    sessions     each request of a client takes effect once
    holds        names of readers for which the log keeps entries

Begin with ``projection``. The router and shard_state import it; it imports no other model.
"""
