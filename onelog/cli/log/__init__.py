"""``onelog log``: the files of a data directory, without a server.

* ``commands``: inspect, dump, verify, repair. Begin here.
* ``state``: replay, snapshot, prove
* ``output``: what they print

The work is done in ``ual`` and ``snapshot``, which the commands import when they run.
"""
