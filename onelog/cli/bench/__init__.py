"""``onelog bench``: load on any endpoint.

* ``command``: the command, its namespace and its table. Begin here.
* ``workloads``: what callers do, and how their calls are measured; ``bench/api.py`` uses it too
"""
