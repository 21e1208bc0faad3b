"""The ``onelog`` command. Begin with ``main``, then ``program``, then ``command`` and ``kv``.

* ``main``: the entry point, and how errors become one line and an exit code
* ``program``: the tree of commands; each group is loaded when it is needed
* ``command``: flags, help and session of all commands that talk to a server
* ``connect``, ``values``, ``documents``: settings of the connection, arguments, JSON documents
* ``output``, ``failure``: what commands print, and how they fail
* ``kv``, ``queue``, ``stream``, ``groups``, ``timeseries``: the commands of the models
* ``transact``, ``watch``, ``import_rows``, ``export``, ``spark``: commands over all models
* ``admin``: operations on a running cluster
* ``serve``, ``log/``, ``cluster/``: a server, its files offline, a cluster on this machine
* ``bench/``, ``demo/``, ``completion``: load, the tour, shell completion

Nothing else of the product imports this package. It uses the client. What only some commands need
(the server for ``serve``, the log for ``log/``, Spark for ``export``) is imported inside these, so
that every other command starts fast.
"""
