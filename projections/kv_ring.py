"""Rings: full records whose versions have one size, which a plain put writes over in place.

A key that is put again and again has as many versions as it may have. In a record (kv_record.py)
they stand newest first, so the next one means to copy all others. Where all of them have the size
of the next one, too, it can take the place of the oldest, and nothing is copied. A ring:

| size | type | field | meaning |
|---|---|---|---|
| 1 | u8 | newest | slot of the newest version; the older ones follow it, round the end |
| 1 | u8 | count | how many slots there are, which is how many versions the namespace keeps |
| n | | slots | versions as in a record, all of the same size |

A ring is a ``bytearray``, any other record is ``bytes``, and neither is seen by the garbage
collector. Invariants: every version in a ring is a plain value that stands in it (no lifetime, no
lease, no tombstone); the head of the newest says TRIMMED and the count. Only plain puts
(kv_plain.py) make and write rings; everybody else asks for ``straight``, and swaps records.

Measured with 1,000 keys of 16 and values of 100 bytes, eight versions: 1.9 µs for a put of a batch
that copies, 1.0 for one that does not. A server whose 20,000 such keys are in no cache spent 46
percent of its time in the loop that copied; five turns of old and new, ``put_many`` on one node:
6.4 and 4.8 µs of the node's CPU for a put, 129,000 and 163,000 puts/s.
"""

from projections.kv_record import COUNT_AT, FLAGS_AT, TRAILER, TRIMMED

Record = bytes | bytearray
"""All versions of a key: a record as kv_record.py has it, or a ring."""

RING_HEAD_SIZE = 2
_SIZE_AT = COUNT_AT + 1


def rolled(record: bytes, size: int, count: int) -> Record:
    """Return a full record of ``count`` versions as a ring, if all are plain and of this size."""
    if len(record) != size * count:
        return record
    heads = [record[at + FLAGS_AT : at + _SIZE_AT + TRAILER.size] for at in _starts(size, count)]
    plain = TRAILER.pack(size)
    if any(head[0] & ~TRIMMED or head[2:] != plain for head in heads):
        return record
    return bytearray(bytes((0, count))) + record


def is_ring_of(ring: bytearray, size: int, count: int) -> bool:
    """Tell whether a ring has so many slots of this size."""
    return ring[1] == count and len(ring) == RING_HEAD_SIZE + size * count


def straight(record: Record) -> bytes:
    """Return all versions, newest first."""
    if isinstance(record, bytes):
        return record
    at, _ = _newest(record)
    return bytes(record[at:] + record[RING_HEAD_SIZE:at])


def newest_of(record: Record) -> bytes:
    """Return something that begins with the newest version; the others may be missing."""
    if isinstance(record, bytes):
        return record
    at, size = _newest(record)
    return bytes(record[at : at + size])


def check_ring(ring: bytearray) -> None:
    """Assert the invariants of a ring."""
    assert ring[0] < ring[1], f"slot {ring[0]} of {ring[1]}"
    _, size = _newest(ring)
    assert isinstance(rolled(straight(ring), size, ring[1]), bytearray), "a ring of other versions"
    at, _ = _newest(ring)
    assert ring[at + FLAGS_AT] == TRIMMED, "a ring that has dropped nothing"
    assert ring[at + COUNT_AT] == ring[1], "a ring that is not full"


def _newest(ring: bytearray) -> tuple[int, int]:
    """Return where the newest version begins, and how large each is."""
    size = (len(ring) - RING_HEAD_SIZE) // ring[1]
    return RING_HEAD_SIZE + ring[0] * size, size


def _starts(size: int, count: int) -> range:
    return range(0, size * count, size)
