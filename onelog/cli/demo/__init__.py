"""``onelog demo``: the five-minute tour.

* ``command``: runs and checks the steps in a shell of their own. Begin here.
* ``tour``: the steps
"""
