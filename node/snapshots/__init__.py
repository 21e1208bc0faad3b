"""Snapshots of running shards, and states of the past.

* ``taking``: builds a snapshot in another process and accepts the result.
* ``past``: builds and keeps the states that reads "as of" an index need.

Imported by ``config`` and everything above it; imports ``replica`` and the package ``snapshot``.
When a snapshot is due is decided in ``node/server/snapshot_schedule.py``. Begin with ``taking.py``.
"""
