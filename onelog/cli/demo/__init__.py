"""``onelog demo``: the five-minute tour."""
