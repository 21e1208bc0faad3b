"""Where a name lives, as the servers compute it: routing key, partition, shard.

The rule is part of the file format and never changes; it is repeated here because a client imports
nothing of the server. ``tests/client/test_routing.py`` compares the two.
"""

from crc32c import crc32c


def routing_key(name: bytes) -> bytes:
    """Return the content of the first non-empty ``{tag}`` in ``name``, else all of ``name``."""
    begin = name.find(b"{")
    while begin >= 0:
        end = name.find(b"}", begin + 1)
        if end < 0:
            return name
        if end > begin + 1:
            return name[begin + 1 : end]
        begin = name.find(b"{", end + 1)
    return name


def shard_of(name: bytes, partition_count: int, shard_count: int) -> int:
    """Return the shard that a key or name belongs to."""
    assert partition_count > 0, partition_count
    assert shard_count > 0, shard_count
    return crc32c(routing_key(name)) % partition_count % shard_count
