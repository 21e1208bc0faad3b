"""``onelog log``: the files of a data directory."""
