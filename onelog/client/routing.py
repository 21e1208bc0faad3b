"""Where a name lives, as the servers compute it: routing key, partition, shard.

The rule is part of the file format and never changes; it is repeated here because a client imports
nothing of the server. ``tests/onelog/client/test_routing.py`` compares the two.
"""

from collections.abc import Iterable

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


def routing_keys(names: Iterable[bytes]) -> set[bytes]:
    """Return the routing keys of many names; a tag that most of them share is found at once."""
    found: set[bytes] = set()
    tagged: bytes | None = None
    for name in names:
        # A name has this tag if its first brace begins it; from -1 on there is no room for one.
        if tagged is not None and name.startswith(tagged, name.find(b"{")):
            continue
        key = routing_key(name)
        found.add(key)
        if len(key) < len(name):
            tagged = b"{%b}" % key
    return found


def shard_of(name: bytes, partition_count: int, shard_count: int) -> int:
    """Return the shard that a key or name belongs to."""
    assert partition_count > 0, partition_count
    assert shard_count > 0, shard_count
    return crc32c(routing_key(name)) % partition_count % shard_count
