"""The way from a socket to a shard.

* ``port``: the API's port: connections and HTTP/2 streams.
* ``exchange``: one call on a connection.
* ``gate``: admits or refuses calls: the stage of the node, and its limits.
* ``calls``: what every call shares: deadlines, errors, tracing, forwarding.
* ``operation``: one write or read of a model, described once.
* ``shards``: finds the shard of an operation and carries it out there.
* ``waits``: waiting for a condition on the state of a shard.
* ``messages``: protobuf messages that several services fill or parse.
* ``pages``: lists by name over all shards.
* ``timeseries_reads``: long queries of time series, carried out beside the loop.

Imported by ``watch``, ``services`` and ``server``; imports ``membership`` and what is below it.
Begin with ``shards.py``.
"""
