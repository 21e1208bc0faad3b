"""The Python client: an async core, and a blocking client generated from it.

Begin with ``client`` (``AsyncClient``), then ``kv``, then ``connection``, which routes every call.

What users see, one module for each model or idea:

* ``client``: ``AsyncClient``, which opens everything else
* ``kv``, ``leases``, ``transactions``: keys and documents, leases and locks, atomic batches
* ``queue``, ``worker``: queues, and a loop that runs a handler for each message
* ``stream``, ``tail``, ``group``: streams, following them live, consumer groups
* ``timeseries``: points as numpy arrays
* ``watch``: events of all models; ``pages``: what iterators of live records and events share
* ``log``, ``admin``: the log as it is stored, operations on the cluster
* ``values``, ``options``, ``observing``: arguments and results, settings, costs and tracing

How a call travels, from the top:

* ``connection``: what all views of a client share; bounds what is under way
* ``lanes``, ``batch``: calls made at the same time leave as one pipeline message
* ``pipeline_stream``: the pipeline stream to one endpoint
* ``sessions``: makes the retry of a write exact
* ``calls``: unary calls and server streams, with retries
* ``topology``, ``channels``: which endpoint leads which shard; connections to endpoints
* ``validation``: refuses arguments that no request can hold

``blocking`` runs the core's event loop in a thread; ``sync`` is the blocking client, written by
``scripts.generate_sync_client``. Applications import from ``onelog``, the command-line tool also
from here. Nothing here imports the server.
"""
