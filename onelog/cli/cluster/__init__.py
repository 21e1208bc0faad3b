"""``onelog cluster``: a cluster of real servers on this machine.

* ``commands``: the commands. Begin here.
* ``lifecycle``: starts and stops nodes
* ``state``: the directory of a cluster, and what it remembers
* ``processes``: identities of processes, signals, and ports
* ``status``: asks the nodes, and reports changes
* ``view``: tables, JSON and the live view

Only ``program`` loads this package.
"""
