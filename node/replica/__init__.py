"""One shard on this node: its log, state, Raft member and exchange with other replicas.

* ``shard``: the replica itself: messages and requests in, results and jobs out.
* ``driver``: runs shards on the event loop, with threads for what blocks.
* ``requests``: group commit: merges, bounds, expires and answers requests.
* ``stale_reads``: reads that any replica answers from its own state.
* ``shipping``: what replicas exchange beside Raft's messages; ``sender`` answers fetches,
  ``receiver`` takes a leader's snapshot and log over, ``repair`` replaces damaged segments.
* ``retention``: what of the log must be kept; holds.
* ``jobs``, ``direct_future``: work on threads; a future that resumes its waiter at once.
* ``status``: a replica's status as one value.
* ``spill``: a store for values that do not fit in memory; not in use yet.

The lowest part of ``node``: all the others may import it; it imports ``cluster``, ``snapshot``,
``projections`` and ``ual``. Begin with ``shard.py``.
"""
