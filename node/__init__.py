"""The server process: ``onelog serve``.

Imports go down this list, never up:

* ``server``: starts and stops the process, HTTP pages, worker processes, the snapshot schedule.
* ``services``: the gRPC services.
* ``watch``: events for watchers and stream tails.
* ``edge``: the way from a socket to a shard: limits, routing, forwarding, waiting.
* ``membership``: founding and joining a cluster, the peer port, balanced leaderships.
* ``config``: every setting, and where its value comes from.
* ``snapshots``: taking snapshots; states of the past.
* ``replica``: one shard on this node.

Beside them stand ``main`` (from arguments to a running node), ``context`` (what services are
given), ``replicas`` (all shards of a process), ``readiness``, ``metrics``, ``tracing``,
``credentials``, ``public_errors`` (what clients are answered) and ``errors`` (why a node does not
start).

The command line starts a node through ``main`` and reports its ``errors``; nothing else in ``node``
is imported from outside.
Begin with ``server/server.py`` for the process, or ``edge/shards.py`` for one request.
"""
