"""The server process. In work: ``shard`` is one replica; ``onelog serve`` is not built yet."""
