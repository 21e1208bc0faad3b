"""Who belongs to the cluster, and who leads.

* ``formation``: founds a cluster, joins one, or finds the one that the directory belongs to.
* ``peer_port``: the port that other nodes call, and the rules by which founders agree.
* ``removal``: how a node learns that it is no member any more.
* ``topology``: which node serves and leads which shard, as this process knows it.
* ``balance``: spreads the leaderships evenly over the nodes.

Imported by ``edge`` and everything above it; imports ``config``, ``replica`` and ``cluster``.
Begin with ``formation.py``.
"""
