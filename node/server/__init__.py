"""The process: how everything is wired, started and stopped.

* ``server``: one process, from its settings to serving and back.
* ``workers``: the parent of a node that has several worker processes.
* ``http``: the small HTTP server for metrics and health.
* ``snapshot_schedule``: takes snapshots and trims logs when they are due; their metrics.

Imported by ``node/main.py`` only; imports everything else in ``node``. Begin with ``server.py``.
"""
