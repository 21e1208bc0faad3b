"""The server process. In work: ``shard`` is one replica; ``onelog serve`` says that it is not built."""
