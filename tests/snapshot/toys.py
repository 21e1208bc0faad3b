"""A state of a few lines, for tests of the machinery around states.

It knows streams, which the first projections do not: an entry of type 0x0401 is a record of one of
three streams, one with a payload of five bytes is refused. What it holds is a chain over all that
was not refused, so a lost, repeated or changed entry shows in its hash.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from onelog.projections.errors import CorruptSection
from onelog.ual.entry import Draft, Entry
from onelog.ual.segments.notes import ApplyNotes

TYPE_RECORD = 0x0401
TYPE_OTHER = 0x0101
VOID_SIZE = 5
_HEAD = struct.Struct("<QQ")


def stream_of(index: int) -> int:
    return (7, 8, 1 << 40)[index % 3]


class Toy:
    """A router that is its own state."""

    def __init__(self, notes: ApplyNotes) -> None:
        self._notes = notes
        self.applied_index = 0
        self.chain = 0
        self.payloads: list[bytes] = []
        self.groups: list[int] = []  # how large the groups were that came in
        self.lies = False  # dump something else than the state

    @property
    def router(self) -> "Toy":
        return self

    def apply(self, entry: Entry, /) -> None:
        assert entry.index == self.applied_index + 1, (entry.index, self.applied_index)
        self.applied_index = entry.index
        if len(entry.payload) == VOID_SIZE:
            self._notes.add_void(entry.index, entry.index)
            return
        self.chain = xxh3_64_intdigest(entry.payload, self.chain ^ entry.index)
        self.payloads.append(entry.payload)
        if entry.entry_type == TYPE_RECORD:
            self._notes.add_record(stream_of(entry.index), entry.index)

    def apply_group(self, entries: Sequence[Entry], /) -> None:
        assert entries[-1].group_left == 0, "half a group"
        self.groups.append(len(entries))
        for entry in entries:
            self.apply(entry)

    def state_hash(self) -> int:
        return self.chain

    def counts(self) -> Mapping[str, int]:
        return {"payloads": len(self.payloads)}

    def dump(self) -> Mapping[int, Iterable[bytes]]:
        chain = self.chain ^ self.lies
        return {
            0: [_HEAD.pack(self.applied_index, chain)],
            4: (len(payload).to_bytes(4, "little") + payload for payload in self.payloads),
        }

    def load(self, sections: Mapping[int, Iterable[bytes]], /) -> None:
        assert self.applied_index == 0
        head = b"".join(sections[0])
        if len(head) != _HEAD.size:
            raise CorruptSection(0, "size")
        self.applied_index, self.chain = _HEAD.unpack(head)
        data = b"".join(sections[4])
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            self.payloads.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        if at != len(data):
            raise CorruptSection(4, "cut")


def toy_drafts(count: int, first: int) -> list[Draft]:
    """Return a group of records, others and refused entries."""
    drafts = []
    for number in range(first, first + count):
        kind = TYPE_RECORD if number % 4 else TYPE_OTHER
        size = VOID_SIZE if number % 6 == 0 else 12
        drafts.append(Draft(kind, b"%012d" % number if size == 12 else b"void!"))
    return drafts
