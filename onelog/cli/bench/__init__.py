"""``onelog bench``: load on any endpoint."""
