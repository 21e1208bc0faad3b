"""Entries and groups: the bytes of the log.

An entry is a 40-byte header and a payload. A group is the content of one proposal: consecutive
entries of one term whose ``group_left`` counts down to 0. Groups are written, replicated, cut and
recovered whole. docs/formats.md has the byte table.

There are two kinds of decoding:

* ``check_group`` trusts nothing: it verifies every rule of every entry and says which one broke.
  Bytes from a disk or a peer pass it first (or the checksum of a whole sealed file does).
* ``decode_entry`` trusts the bytes it is given, which is why it is fast.

Payloads are compressed with zstd where that saves at least ``SAVED_PERCENT_MIN`` percent; a small
saving is not worth the decompression on each replica. Small payloads stay plain, because a frame
header and the call cost more than they save. For a large payload, a sample decides. Measured: 128
puts of 100 random bytes in one payload of 15 KB take 77 µs at level 3 and 50 at level 1 and shrink
by 8 to 17 percent; the sample takes 5 µs. JSON of 16 KB shrinks to a fifth, in 53 µs at level 3 and
33 at level 1. Creating a decompressor costs 10 µs, so they are reused. A frame without its content
size is neither written nor accepted: a reader knows how much it will allocate, and a decompression
bomb is an error.

This module does no I/O and reads no clock: index, term and time are passed in.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from onelog.ual.errors import (
    CorruptEntry,
    CorruptPayload,
    GroupTooLarge,
    PayloadTooLarge,
    TornEntry,
)

COMPRESS_SIZE_MIN = 1024
SAVED_PERCENT_MIN = 20
SAMPLE_SIZE = 1024
PLAIN_SIZE_MAX = 64 << 20

_COMPRESSOR = zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)
# A decompressor is not reentrant, and many threads read entries: each call takes an unused one.
_DECOMPRESSORS: list[zstandard.ZstdDecompressor] = []


def compress(payload: bytes) -> bytes | None:
    """Return the compressed payload, or None if storing it plain is better.

    The shared compressor is not reentrant: only the thread that encodes entries calls this.
    """
    size = len(payload)
    if size < COMPRESS_SIZE_MIN:
        return None
    if size > 4 * SAMPLE_SIZE:
        sample = payload[size // 2 : size // 2 + SAMPLE_SIZE]
        if not _is_worth_it(len(_COMPRESSOR.compress(sample)), SAMPLE_SIZE):
            return None
    packed = _COMPRESSOR.compress(payload)
    return packed if _is_worth_it(len(packed), size) else None


def _is_worth_it(packed_size: int, size: int) -> bool:
    return packed_size * 100 <= size * (100 - SAVED_PERCENT_MIN)


def decompress(packed: bytes, plain_size_max: int = PLAIN_SIZE_MAX) -> bytes:
    """Return the plain payload; refuse one larger than ``plain_size_max`` before allocating it."""
    try:
        size = zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"not a zstd frame: {error}") from error
    if size < 0:
        raise CorruptPayload("a zstd frame without its content size")
    if size > plain_size_max:
        raise PayloadTooLarge(size, plain_size_max)
    try:
        decompressor = _DECOMPRESSORS.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        plain = decompressor.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"damaged zstd frame: {error}") from error
    _DECOMPRESSORS.append(decompressor)
    if len(plain) != size:
        raise CorruptPayload(f"a zstd frame of {size} bytes decompressed to {len(plain)}")
    return plain


# Entry

HEADER = struct.Struct(
    "<"  # little-endian, no implicit padding
    "I"  # crc32c of all that follows, payload included
    "H"  # entry_type: owner << 8 | operation
    "H"  # flags
    "Q"  # raft_term
    "Q"  # raft_index
    "Q"  # timestamp_ns
    "I"  # payload_len
    "I"  # group_left: entries still to come in this group
)
HEADER_SIZE = 40
CRC_SIZE = 4
assert HEADER.size == HEADER_SIZE  # files and docs/formats.md depend on it

_CRC = struct.Struct("<I")
_CHECKED = struct.Struct("<HHQQQII")  # the header after its crc
assert _CRC.size + _CHECKED.size == HEADER_SIZE

FLAG_ZSTD = 0x0001
FLAG_CONDITIONAL = 0x0002
FLAGS_KNOWN = FLAG_ZSTD | FLAG_CONDITIONAL

OWNER_SYSTEM = 0x00
OWNER_KV = 0x01
OWNER_QUEUE = 0x02
OWNER_TIMESERIES = 0x03
OWNER_STREAM = 0x04
OWNER_NAMES = {
    OWNER_SYSTEM: "system",
    OWNER_KV: "kv",
    OWNER_QUEUE: "queue",
    OWNER_TIMESERIES: "timeseries",
    OWNER_STREAM: "stream",
}
OWNER_COUNT_MAX = 16  # the number of slots in a segment's footer that count entries by owner
TYPES_END = OWNER_COUNT_MAX << 8

TYPE_NOOP = OWNER_SYSTEM << 8 | 0x01

# A group must fit the bytes that may be unsynced at once, or a torn group could look like
# corruption (ual/recovery.py). One entry may fill a group.
GROUP_SIZE_MAX = 16 << 20
GROUP_ENTRIES_MAX = 65_536
PAYLOAD_SIZE_MAX = GROUP_SIZE_MAX - HEADER_SIZE


class Unreadable(NamedTuple):
    """Consecutive entries that cannot be read, in their place: their file is damaged."""

    first_index: int
    last_index: int


class Draft(NamedTuple):
    """An entry as it is proposed; the log adds index, term, time and checksum."""

    entry_type: int
    payload: bytes
    flags: int = 0


class Entry(NamedTuple):
    """One decoded entry. ``payload`` is as stored: compressed if ``flags`` say so.

    A tuple, not a dataclass: decoding builds one per entry, and a frozen dataclass with slots
    costs four times as much to build (1.0 against 0.25 µs).
    """

    entry_type: int
    flags: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody wants here
    timestamp_ns: int
    group_left: int
    payload: bytes

    @property
    def owner(self) -> int:
        """The projection that the entry belongs to."""
        return self.entry_type >> 8

    def plain_payload(self, plain_size_max: int = PLAIN_SIZE_MAX) -> bytes:
        """Return the payload as it was proposed, decompressed within a limit."""
        if self.flags & FLAG_ZSTD:
            return decompress(self.payload, plain_size_max)
        return self.payload


class Group(NamedTuple):
    """A whole group in its stored form, with its offsets, indexes, term and times."""

    data: bytes
    offsets: Sequence[int]  # where each entry starts in ``data``
    term: int
    first_index: int
    last_index: int
    first_timestamp_ns: int
    last_timestamp_ns: int


def encode_group(
    drafts: Sequence[tuple[int, bytes, int]], *, term: int, first_index: int, timestamp_ns: int
) -> Group:
    """Encode the drafts as one group whose entries start at ``first_index``."""
    left = len(drafts)
    assert left > 0, "a group has at least one entry"
    if left > GROUP_ENTRIES_MAX:
        raise GroupTooLarge(f"a group of {left} entries, limit {GROUP_ENTRIES_MAX}")
    # One pass over local names: this loop is the cost of a write (bench/log.py).
    parts: list[bytes] = []
    add_part = parts.append
    offsets: list[int] = []
    add_offset = offsets.append
    pack_checked, pack_crc, checksum = _CHECKED.pack, _CRC.pack, crc32c
    offset = 0
    index = first_index
    for entry_type, payload, flags in drafts:
        size = len(payload)
        if size >= COMPRESS_SIZE_MIN and not flags & FLAG_ZSTD:
            packed = compress(payload)
            if packed is not None:
                payload = packed
                size = len(packed)
                flags |= FLAG_ZSTD
        # Recovery refuses an unknown type or flag and everything after it: never write one.
        assert entry_type < TYPES_END and flags <= FLAGS_KNOWN, (entry_type, flags)  # noqa: PT018
        left -= 1
        checked = pack_checked(entry_type, flags, term, index, timestamp_ns, size, left) + payload
        add_part(pack_crc(checksum(checked)))
        add_part(checked)
        add_offset(offset)
        offset += HEADER_SIZE + size
        index += 1
    if offset > GROUP_SIZE_MAX:
        raise GroupTooLarge(f"a group of {offset} bytes, limit {GROUP_SIZE_MAX}")
    return Group(b"".join(parts), offsets, term, first_index, index - 1, timestamp_ns, timestamp_ns)


def check_group(
    buffer: bytes | memoryview,
    offset: int,
    first_index: int,
    timestamp_ns_min: int = 0,
    *,
    alone: int | None = None,
) -> Group:
    """Verify the whole group that starts at ``offset`` and must start at ``first_index``.

    ``alone``: an entry type that must be the only entry of its group.

    Raises ``TornEntry`` if the buffer ends first and ``CorruptEntry`` if a rule is broken.
    A damaged length looks like a torn write, and the other way round: one checksum covers both,
    so only a caller that knows what was durable can tell which it is.
    """
    unpack, checksum = HEADER.unpack_from, crc32c
    view = memoryview(buffer)
    end_max = len(view)
    start = offset
    offsets: list[int] = []
    index = first_index
    term_expected = left_expected = first_timestamp_ns = -1
    previous_ns = timestamp_ns_min
    while True:
        payload_at = offset + HEADER_SIZE
        if payload_at > end_max:
            raise TornEntry(offset, "the buffer ends in the header")
        crc, entry_type, flags, term, got_index, time_ns, size, left = unpack(view, offset)
        if size > PAYLOAD_SIZE_MAX:
            raise CorruptEntry(offset, f"payload_len {size} above {PAYLOAD_SIZE_MAX}")
        end = payload_at + size
        if end > end_max:
            raise TornEntry(offset, "the buffer ends in the payload")
        if checksum(view[offset + CRC_SIZE : end]) != crc:
            raise CorruptEntry(offset, "checksum")
        if got_index != index:
            raise CorruptEntry(offset, f"index {got_index} where {index} belongs")
        if flags & ~FLAGS_KNOWN:
            raise CorruptEntry(offset, f"unknown flags 0x{flags:04x}")
        if entry_type >> 8 >= OWNER_COUNT_MAX:
            raise CorruptEntry(offset, f"unknown owner 0x{entry_type >> 8:02x}")
        if time_ns < previous_ns:
            raise CorruptEntry(offset, f"timestamp {time_ns} after {previous_ns}")
        if not offsets:
            if left >= GROUP_ENTRIES_MAX:
                raise CorruptEntry(offset, f"group_left {left} above {GROUP_ENTRIES_MAX - 1}")
            term_expected, first_timestamp_ns = term, time_ns
        else:
            if term != term_expected:
                raise CorruptEntry(offset, f"term {term} in a group of term {term_expected}")
            if left != left_expected:
                raise CorruptEntry(offset, f"group_left {left} where {left_expected} belongs")
        if entry_type == alone and (left or offsets):
            raise CorruptEntry(offset, f"type 0x{entry_type:04x} shares its group")
        offsets.append(offset - start)
        previous_ns = time_ns
        offset = end
        if left == 0:
            break
        left_expected = left - 1
        index += 1
    if offset - start > GROUP_SIZE_MAX:
        raise CorruptEntry(start, f"a group of {offset - start} bytes above {GROUP_SIZE_MAX}")
    data = bytes(view[start:offset])
    return Group(data, offsets, term_expected, first_index, index, first_timestamp_ns, previous_ns)


def check_entry(buffer: bytes | memoryview, offset: int, index: int) -> Entry:
    """Decode one entry of a file that is not trusted yet: its checksum and index must hold."""
    view = memoryview(buffer)
    payload_at = offset + HEADER_SIZE
    if payload_at > len(view):
        raise TornEntry(offset, "the buffer ends in the header")
    crc, entry_type, flags, term, got_index, time_ns, size, left = HEADER.unpack_from(view, offset)
    end = payload_at + size
    if end > len(view):
        raise TornEntry(offset, "the buffer ends in the payload")
    if crc32c(view[offset + CRC_SIZE : end]) != crc:
        raise CorruptEntry(offset, "checksum")
    if got_index != index:
        raise CorruptEntry(offset, f"index {got_index} where {index} belongs")
    return Entry(entry_type, flags, term, index, time_ns, left, bytes(view[payload_at:end]))


def decode_entry(data: bytes) -> Entry:
    """Decode ``data``, which is exactly one entry, without checking it (see the module)."""
    _, entry_type, flags, term, index, time_ns, _, left = HEADER.unpack_from(data)
    return Entry(entry_type, flags, term, index, time_ns, left, data[HEADER_SIZE:])


def decode_entries(data: bytes) -> list[Entry]:
    """Return the entries of stored groups that were checked before."""
    unpack = HEADER.unpack_from
    entries: list[Entry] = []
    start, size = 0, len(data)
    while start < size:
        _, entry_type, flags, term, index, time_ns, length, left = unpack(data, start)
        payload_at = start + HEADER_SIZE
        start = payload_at + length
        entries.append(Entry(entry_type, flags, term, index, time_ns, left, data[payload_at:start]))
    return entries
