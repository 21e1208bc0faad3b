"""The bytes of a ``.fsnap`` file: a header, sections, a footer. docs/snapshots.md has the tables.

::

    header    64 B   index, term and time of the state, and the size of the file
    section   24 B   type, size, checksum of the content, checksum of these bytes
    content          of the section; more sections follow, by ascending type
    footer    16 B   checksum of everything before it

Invariants:

* Every byte is under a checksum, or must be zero, or is a magic. So each flipped bit is found, and
  each cut too: the header says the size of the file.
* A checksum is compared before the version that it covers: a flipped bit is damage, and only a
  version that was really written is reported as a newer onelog.
* Types below 0x10 are owner bytes (``onelog.ual.entry``), so that a section is its projection's.

Nothing here reads a file or allocates by a size that the bytes announce.

``combine`` computes the crc32c of two parts together from the crc32c of each. A snapshot's headers
are known only when its sections are written, but they come first in the file, and one checksum
covers the whole file. So each byte is checksummed once and never read back. A crc is a remainder of
polynomials over GF(2). Appending n bytes multiplies what came before by x**(8n), so ``combine`` is
one multiplication by that power. Bits are reflected, as crc32c requires: bit 31 is x**0.
"""

import re
import struct
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from crc32c import crc32c

from onelog.snapshot.errors import CorruptSnapshot
from onelog.ual.entry import OWNER_COUNT_MAX
from onelog.ual.errors import UnknownVersion

VERSION = 1
MAGIC = b"FLO_SNP\0"
END_MAGIC = b"FLO_SNE\0"

SECTION_NOTES = 0x10  # sections below are the projections', by owner
SECTION_COUNT_MAX = OWNER_COUNT_MAX + 1

_HEADER = struct.Struct(
    "<"  # little-endian, no implicit padding
    "8s"  # magic
    "H"  # version
    "H"  # shard
    "I"  # section_count
    "Q"  # ual_index: of the last entry in the state
    "Q"  # raft_term of that entry
    "Q"  # proposal: number of the group that it closes
    "Q"  # timestamp_ns of that entry: the log time of the state
    "Q"  # size of the file
)
_HEADER_TAIL = struct.Struct(
    "<"
    "I"  # crc32c of the header before it
    "I"  # reserved, zero
)
_SECTION = struct.Struct(
    "<"
    "B"  # type
    "7s"  # zero
    "Q"  # size of the content
    "I"  # crc32c of the content
)
_CRC = struct.Struct("<I")
_FOOTER = struct.Struct(
    "<"
    "I"  # crc32c of the file before the footer
    "I"  # zero
    "8s"  # magic
)
HEADER_SIZE = 64
SECTION_HEADER_SIZE = 24
FOOTER_SIZE = 16
FILE_SIZE_MIN = HEADER_SIZE + FOOTER_SIZE
assert _HEADER.size + _HEADER_TAIL.size == HEADER_SIZE  # files and docs depend on these
assert _SECTION.size + _CRC.size == SECTION_HEADER_SIZE
assert _FOOTER.size == FOOTER_SIZE

# Ten digits, or more without a zero in front; then the wall clock's seconds.
_NAME = re.compile(r"([0-9]{10}|[1-9][0-9]{10,19})-(0|[1-9][0-9]{0,19})\.fsnap(\.tmp)?", re.ASCII)


class SnapshotName(NamedTuple):
    """A parsed file name of snaps/."""

    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody wants here
    created_s: int
    is_temporary: bool  # being written, or left by a crash


def snapshot_name(index: int, created_s: int) -> str:
    """Return the name of a snapshot at ``index`` that was made at a time of the wall clock."""
    assert index >= 1, index
    assert created_s >= 0, created_s
    return f"{index:010d}-{created_s}.fsnap"


def temporary_name(name: str) -> str:
    """Return the name of a snapshot while it is being written."""
    return f"{name}.tmp"


def parse_snapshot_name(name: str) -> SnapshotName | None:
    """Parse a file name; None if it is not a snapshot's."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) == 0:
        return None
    return SnapshotName(int(match[1]), int(match[2]), match[3] is not None)


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Shard and log position of the state; the last two fields follow from the content."""

    shard: int
    index: int
    term: int
    proposal: int
    timestamp_ns: int
    section_count: int = 0
    size: int = 0

    def encode(self) -> bytes:
        """Return the 64 bytes."""
        assert 1 <= self.proposal <= self.index, (self.proposal, self.index)
        assert self.section_count <= SECTION_COUNT_MAX, self.section_count
        assert self.size >= FILE_SIZE_MIN, self.size
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            self.shard,
            self.section_count,
            self.index,
            self.term,
            self.proposal,
            self.timestamp_ns,
            self.size,
        )
        return head + _HEADER_TAIL.pack(crc32c(head), 0)

    @staticmethod
    def decode(path: str, data: bytes) -> "SnapshotHeader":
        """Return the header in ``data``, or say which rule it breaks."""
        if len(data) < HEADER_SIZE:
            raise CorruptSnapshot(path, "the file ends in the header", len(data))
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptSnapshot(path, "magic of the header", 0)
        crc, reserved = _HEADER_TAIL.unpack_from(data, _HEADER.size)
        if crc != crc32c(data[: _HEADER.size]):
            raise CorruptSnapshot(path, "checksum of the header", _HEADER.size)
        if reserved:
            raise CorruptSnapshot(path, f"reserved bytes hold {reserved}", HEADER_SIZE - 4)
        _, version, shard, section_count, index, term, proposal, timestamp_ns, size = (
            _HEADER.unpack_from(data)
        )
        if version > VERSION:
            raise UnknownVersion(path, version, VERSION)
        if version == 0:
            raise CorruptSnapshot(path, "version 0", len(MAGIC))
        if not 1 <= proposal <= index:
            raise CorruptSnapshot(path, f"proposal {proposal} at index {index}", 0)
        if section_count > SECTION_COUNT_MAX:
            raise CorruptSnapshot(path, f"{section_count} sections", 0)
        return SnapshotHeader(shard, index, term, proposal, timestamp_ns, section_count, size)


@dataclass(frozen=True, slots=True)
class SectionHeader:
    """The 24 bytes before a section's content."""

    section_type: int
    size: int
    crc: int

    def encode(self) -> bytes:
        """Return the 24 bytes."""
        assert is_section_type(self.section_type), self.section_type
        head = _SECTION.pack(self.section_type, bytes(7), self.size, self.crc)
        return head + _CRC.pack(crc32c(head))

    @staticmethod
    def decode(path: str, data: bytes, offset: int) -> "SectionHeader":
        """Return the header in ``data``, whose offset in the file is ``offset``."""
        if len(data) < SECTION_HEADER_SIZE:
            raise CorruptSnapshot(path, "the file ends in a section's header", offset)
        (crc,) = _CRC.unpack_from(data, _SECTION.size)
        if crc != crc32c(data[: _SECTION.size]):
            raise CorruptSnapshot(path, "checksum of a section's header", offset)
        section_type, zeros, size, content_crc = _SECTION.unpack_from(data)
        if not is_section_type(section_type):
            raise CorruptSnapshot(path, f"unknown section type 0x{section_type:02x}", offset)
        if any(zeros):
            raise CorruptSnapshot(path, "padding that is not zero", offset + 1, section_type)
        return SectionHeader(section_type, size, content_crc)


def is_section_type(section_type: int) -> bool:
    """Return whether this version knows the section type."""
    return 0 <= section_type < OWNER_COUNT_MAX or section_type == SECTION_NOTES


def encode_footer(crc: int) -> bytes:
    """Return the 16 bytes that end a file whose other bytes have this checksum."""
    return _FOOTER.pack(crc, 0, END_MAGIC)


def decode_footer(path: str, data: bytes, offset: int) -> int:
    """Return the checksum in the footer, whose offset in the file is ``offset``."""
    if len(data) != FOOTER_SIZE:
        raise CorruptSnapshot(path, "the file ends in the footer", offset)
    crc, zero, magic = _FOOTER.unpack(data)
    if magic != END_MAGIC:
        raise CorruptSnapshot(path, "magic of the footer", offset + 8)
    if zero:
        raise CorruptSnapshot(path, f"reserved bytes hold {zero}", offset + 4)
    assert isinstance(crc, int)
    return crc


# Checksum

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_ONE = 0x80000000
_BYTE = 0x00800000  # x**8


def combine(first_crc: int, second_crc: int, second_size: int) -> int:
    """Return crc32c(first + second); of the second part only crc and size are needed."""
    return _multiply(_power(second_size), first_crc) ^ second_crc


@cache
def _square(exponent: int) -> int:
    """Return x**(8 * 2**exponent); there are at most 64 of them."""
    if exponent == 0:
        return _BYTE
    root = _square(exponent - 1)
    return _multiply(root, root)


def _power(size: int) -> int:
    """Return x**(8 * size)."""
    product = _ONE
    for exponent in range(size.bit_length()):
        if size >> exponent & 1:
            product = _multiply(product, _square(exponent))
    return product


def _multiply(left: int, right: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
