"""``onelog cluster``: a cluster on this machine."""
