"""Routing: from a name to its routing key, partition and shard.

Clients and servers must agree on this for as long as a cluster lives, so these functions are part
of the file format: a change would strand every key already written.

Partitions stand between names and shards, so that later a partition is counted and moved, not a
name. Partitions are dealt to shards in turn, so shards differ by at most one partition.
"""

from collections.abc import Iterable

from crc32c import crc32c


def routing_key(name: bytes) -> bytes:
    """Return the content of the first non-empty ``{tag}`` in ``name``, else all of ``name``.

    Names with the same tag share a shard, which is what an atomic batch across them needs. A tag
    ends at the first closing brace after it began; an opening brace inside belongs to the tag.
    """
    # Two searches that only move forward. A pattern like \{[^}]+\} would start again at every
    # opening brace, and a name of nothing but braces would cost its length squared.
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
    """Return the routing keys of many names; a tag shared by most of them is found fast."""
    found: set[bytes] = set()
    tagged: bytes | None = None
    for name in names:
        # A name has this tag if the tag begins at its first brace; at -1 (no brace) it never fits.
        if tagged is not None and name.startswith(tagged, name.find(b"{")):
            continue
        key = routing_key(name)
        found.add(key)
        if len(key) < len(name):
            tagged = b"{%b}" % key
    return found


def find_shard(name: bytes, partitions: int, shards: int) -> int:
    """Return the shard that a key or name belongs to."""
    assert partitions > 0, partitions
    assert shards > 0, shards
    return crc32c(routing_key(name)) % partitions % shards
