"""From a socket to a shard: the API's port, calls, admission, routing."""
