"""The messages of one queue: packed columns in the order of ids, rows, and message groups.

``Table`` holds rows in blocks of up to BLOCK_ROWS; a block has one array per field. Id, waiting
time and meta are always there (20 bytes a row). The other fields are columns only in blocks where
some row has them: an unused field costs nothing, a used one eight bytes a row. Groups and tenants
are numbers in the columns; their names are stored outside.

Rejected: one object or tuple per message (200 bytes and more), a dict from id to slot (106 bytes),
one long array with holes (a redriven message comes back with its old id, in the middle).

Invariants: ids ascend over all blocks; a block's ids are at or above its ``first`` and below the
next block's; no block is empty; groups and tenants are those that rows use.

``Row`` is one message. ``encode_row`` returns its canonical bytes, which the state hash and the
snapshot use: equal rows have equal bytes, whatever columns, heaps and lists they came from.
``meta`` packs the fields that every message has into 32 bits, and says which other fields exist.
Invariants: a READY message has neither due time nor token; a DELAYED one has a due time; a LEASED
one has a due time (its lease's end) and a token (the index of the lease entry). ``body`` is 0 if
the message's own entry holds the body, else the index of the entry that does.

A message ``Group`` is the live messages of one queue that share a key, in the order of their ids.
They are delivered in order, one at a time. The next message is always the one with the lowest id,
and only while no message of the group is leased. A delayed message (a retry that waits for its
backoff) holds up its group: that is what order means. When the message with the lowest id is
acknowledged, dead, expired, cancelled or purged, the following one becomes next in the same apply.
A group exists, and has a number, as long as it has messages; rows hold the number.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import eq
from typing import NamedTuple

from onelog.projections.codec import U8, U16, U64, SectionReader
from onelog.projections.queue.limits import (
    BLOCK_ROWS,
    FAILURE_SIZE_MAX,
    MESSAGE_KEY_SIZE_MAX,
)

READY = 0
DELAYED = 1
LEASED = 2
STATES = 3

# meta: bits 0-1 state, 2-5 priority, 8-12 which other fields exist, 16-31 deliveries
STATE_MASK = 0x03
PRIORITY_SHIFT = 2
PRIORITY_MASK = 0x0F
HAS_EXPIRES = 0x0100
HAS_BODY = 0x0200
HAS_GROUP = 0x0400
HAS_TENANT = 0x0800
HAS_DEAD = 0x1000
UNUSUAL = 0x1F00
DELIVERY = 0x10000
DELIVERIES_SHIFT = 16
PLAIN_META = 0xFFFF_003C  # the bits that a ready message without options may have
_META_KNOWN = 0xFFFF_1F3F

PLAIN = struct.Struct("<QQI")  # id, since_ns, meta
DELAYED_ROW = struct.Struct("<QQIQ")  # …, due_ns
LEASED_ROW = struct.Struct("<QQIQQ")  # …, due_ns, token
_DEAD = struct.Struct("<QHQH")  # source, retry_count, failed_ns, size of the failure


class Dead(NamedTuple):
    """Why and where a message died; kept when it is redriven."""

    source: int  # id of the queue that it died in
    retry_count: int
    failed_ns: int
    failure: bytes


class Row(NamedTuple):
    """One live message of one queue."""

    id: int
    since_ns: int  # waiting since: when it was enqueued or due, became dead, or was redriven
    state: int
    priority: int
    deliveries: int = 0
    due_ns: int = 0
    token: int = 0
    expires_ns: int = 0
    body: int = 0
    group: bytes = b""
    tenant: bytes = b""
    dead: Dead | None = None

    @property
    def body_index(self) -> int:
        """The index of the entry that holds body and headers."""
        return self.body or self.id


def pack_meta(row: Row) -> int:
    """Pack the fields that every message has."""
    meta = row.state | row.priority << PRIORITY_SHIFT | row.deliveries << DELIVERIES_SHIFT
    if row.expires_ns:
        meta |= HAS_EXPIRES
    if row.body:
        meta |= HAS_BODY
    if row.group:
        meta |= HAS_GROUP
    if row.tenant:
        meta |= HAS_TENANT
    if row.dead is not None:
        meta |= HAS_DEAD
    return meta


def encode_state(message_id: int, since_ns: int, meta: int, due_ns: int, token: int) -> bytes:
    """Return the canonical bytes of a row without its tail, which only some messages have."""
    state = meta & STATE_MASK
    if state == LEASED:
        return LEASED_ROW.pack(message_id, since_ns, meta, due_ns, token)
    if state == DELAYED:
        return DELAYED_ROW.pack(message_id, since_ns, meta, due_ns)
    return PLAIN.pack(message_id, since_ns, meta)


def encode_row(row: Row) -> bytes:
    """Return the canonical bytes of a row."""
    meta = pack_meta(row)
    head = encode_state(row.id, row.since_ns, meta, row.due_ns, row.token)
    if not meta & UNUSUAL:
        return head
    parts = [head]
    if row.expires_ns:
        parts.append(U64.pack(row.expires_ns))
    if row.body:
        parts.append(U64.pack(row.body))
    if row.group:
        parts += (U8.pack(len(row.group)), row.group)
    if row.tenant:
        parts += (U8.pack(len(row.tenant)), row.tenant)
    if row.dead is not None:
        parts.append(encode_dead(row.dead))
    return b"".join(parts)


def encode_dead(dead: Dead) -> bytes:
    """Encode why a message died."""
    head = _DEAD.pack(dead.source, dead.retry_count, dead.failed_ns, len(dead.failure))
    return head + dead.failure


def decode_dead(data: bytes, at: int) -> tuple[Dead, int]:
    """Decode what ``encode_dead`` wrote at ``at``; return it and its end."""
    source, retry_count, failed_ns, size = _DEAD.unpack_from(data, at)
    end = at + _DEAD.size + size
    return Dead(source, retry_count, failed_ns, data[at + _DEAD.size : end]), end


def read_row(reader: SectionReader, head: tuple[int, int, int]) -> Row:
    """Read the rest of a row from a snapshot section; its first three fields have been read."""
    message_id, since_ns, meta = head
    state = meta & STATE_MASK
    reader.expect(state < STATES and not meta & ~_META_KNOWN, f"a bad message {message_id}")
    due_ns = reader.number(U64) if state != READY else 0
    token = reader.number(U64) if state == LEASED else 0
    expires_ns = reader.number(U64) if meta & HAS_EXPIRES else 0
    body = reader.number(U64) if meta & HAS_BODY else 0
    group = _read_key(reader) if meta & HAS_GROUP else b""
    tenant = _read_key(reader) if meta & HAS_TENANT else b""
    dead = None
    if meta & HAS_DEAD:
        source, retry_count, failed_ns, size = reader.fields(_DEAD)
        reader.expect(size <= FAILURE_SIZE_MAX, "a failure that is too long")
        dead = Dead(source, retry_count, failed_ns, reader.take(size))
    row = Row(
        message_id,
        since_ns,
        state,
        meta >> PRIORITY_SHIFT & PRIORITY_MASK,
        meta >> DELIVERIES_SHIFT,
        due_ns,
        token,
        expires_ns,
        body,
        group,
        tenant,
        dead,
    )
    reader.expect(pack_meta(row) == meta, f"fields of message {message_id} that are not there")
    reader.expect(state == READY or due_ns, f"message {message_id} is due at no time")
    reader.expect(state != LEASED or token, f"message {message_id} is leased to nobody")
    return row


def _read_key(reader: SectionReader) -> bytes:
    key = reader.sized(U8)
    reader.expect(1 <= len(key) <= MESSAGE_KEY_SIZE_MAX, "a bad group or tenant")
    return key


assert U16.size + 18 == _DEAD.size


# Groups

GROUP_SIZE = 445  # bytes of a group: object, name twice, array, number, two table slots
MEMBER_SIZE = 8.5

_TRIM_ROWS = 64


class Group:
    """The messages of one key. ``leased`` and ``placed`` are ids, 0 for none."""

    __slots__ = ("head", "leased", "members", "number", "placed", "tail")

    def __init__(self, name: bytes = b"", number: int = 0) -> None:
        self.tail = U8.pack(len(name)) + name  # the name as the canonical bytes of a row have it
        self.number = number
        self.members = array("Q")
        self.head = 0  # members before it are removed
        self.leased = 0
        self.placed = 0  # the message that was added to the ready ones

    def __len__(self) -> int:
        return len(self.members) - self.head

    @property
    def name(self) -> bytes:
        """The key."""
        return self.tail[1:]

    def turn(self) -> int:
        """Return the id that is next, 0 while one is leased."""
        return 0 if self.leased or not len(self) else self.members[self.head]

    def add(self, message_id: int) -> None:
        """Add a message; most are newer than all others."""
        members = self.members
        if not members or message_id > members[-1]:
            members.append(message_id)
        else:
            members.insert(bisect_left(members, message_id, self.head), message_id)

    def remove(self, message_id: int) -> None:
        """Remove a message; most are the first."""
        members, head = self.members, self.head
        if members[head] != message_id:
            at = bisect_left(members, message_id, head)
            assert members[at] == message_id, f"{message_id} is not in its group"
            del members[at]
            return
        self.head = head = head + 1
        if head >= _TRIM_ROWS and head * 2 >= len(members):
            del members[:head]
            self.head = 0

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return list(self.members[self.head :])


class Groups:
    """The groups of one queue, by key and by number."""

    __slots__ = ("_by_name", "_next", "by_number")

    def __init__(self) -> None:
        self._by_name: dict[bytes, Group] = {}
        self.by_number: dict[int, Group] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: bytes) -> bool:
        return name in self._by_name

    def join(self, name: bytes, message_id: int) -> Group:
        """Add a message to the group of a key and return it."""
        group = self._by_name.get(name)
        if group is None:
            number = self._next
            self._next = number + 1
            group = self._by_name[name] = self.by_number[number] = Group(name, number)
        group.add(message_id)
        return group

    def leave(self, group: Group, message_id: int) -> bool:
        """Remove a message; return whether the group still has any, else it is removed."""
        group.remove(message_id)
        if group.head < len(group.members):
            return True
        del self.by_number[group.number]
        del self._by_name[group.name]
        return False

    def memory(self) -> int:
        """Return the bytes held."""
        members = sum(map(len, self.by_number.values()))
        return GROUP_SIZE * len(self.by_number) + int(MEMBER_SIZE * members)

    def check(self, members: dict[bytes, list[int]]) -> None:
        """Assert that the groups are these."""
        assert {name: group.ids() for name, group in self._by_name.items()} == members, "groups"
        for number, group in self.by_number.items():
            assert group.number == number, f"number {number} of group {group.name!r}"
            assert self._by_name[group.name] is group, f"name of group {number}"
        assert len(self.by_number) == len(self._by_name), "numbers of groups"


# Columns

DUE = 0
TOKEN = 1
EXPIRES = 2
BODY = 3
GROUP = 4
TENANT = 5
COLUMNS = 6

BLOCK_SIZE = 620  # bytes of a block beside its rows: the object, its arrays' headers, the list
ROW_SIZE = 21  # three columns, and what arrays hold in reserve
COLUMN_SIZE = 8.5
NAME_SIZE = 250  # a name, two table slots with their numbers, a count
DEAD_SIZE = 190  # a tuple of four with its numbers, a table slot

MERGE_ROWS = BLOCK_ROWS // 4  # a block with fewer rows is joined with its neighbour
MERGE_MASK = 31  # a block that loses single rows is checked now and then, and when it is empty

_pack_u64 = U64.pack


class Names:
    """Numbers for byte strings that rows share, for as long as any row uses them."""

    __slots__ = ("_counts", "_next", "_numbers", "tails")

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.tails: dict[int, bytes] = {}  # names as the canonical bytes of a row have them
        self._counts: dict[int, int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: bytes) -> bool:
        return name in self._numbers

    def use(self, name: bytes) -> int:
        """Return the number of ``name`` and count one use."""
        number = self._numbers.get(name)
        if number is None:
            number = self._next
            self._next += 1
            self._numbers[name] = number
            self.tails[number] = U8.pack(len(name)) + name
            self._counts[number] = 1
        else:
            self._counts[number] += 1
        return number

    def drop(self, number: int) -> None:
        """Count one use less; an unused name is dropped."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number]
            del self._numbers[self.tails.pop(number)[1:]]

    def name(self, number: int) -> bytes:
        """Return the name with a number."""
        return self.tails[number][1:]

    def counts(self) -> dict[bytes, int]:
        """Return how many rows use each name."""
        return {name: self._counts[number] for name, number in self._numbers.items()}


class Block:
    """Consecutive rows, column by column."""

    __slots__ = ("columns", "first", "has_columns", "ids", "is_wide", "meta", "since")

    def __init__(self, first: int) -> None:
        self.first = first
        self.ids = array("Q")
        self.since = array("Q")
        self.meta = array("I")
        self.columns: list[array[int] | None] = [None] * COLUMNS
        self.has_columns = False  # any of them
        self.is_wide = False  # any besides DUE and TOKEN

    def column(self, kind: int) -> "array[int]":
        """Return a column, adding it if no row has needed it so far."""
        column = self.columns[kind]
        if column is None:
            column = array("Q", bytes(8 * len(self.ids)))
            self.columns[kind] = column
            self.has_columns = True
            self.is_wide |= kind > TOKEN
        return column

    def insert(self, at: int, message_id: int) -> None:
        """Insert a row before position ``at`` with nothing but its id."""
        self.ids.insert(at, message_id)
        self.since.insert(at, 0)
        self.meta.insert(at, 0)
        for column in self.columns:
            if column is not None:
                column.insert(at, 0)

    def delete(self, start: int, stop: int) -> None:
        """Remove the rows from ``start`` to before ``stop``."""
        if stop - start == 1:
            del self.ids[start], self.since[start], self.meta[start]
            if self.has_columns:
                due, tokens = self.columns[DUE], self.columns[TOKEN]
                if due is not None:
                    del due[start]
                if tokens is not None:
                    del tokens[start]
                if self.is_wide:
                    for column in self.columns[TOKEN + 1 :]:
                        if column is not None:
                            del column[start]
            return
        del self.ids[start:stop], self.since[start:stop], self.meta[start:stop]
        for column in self.columns:
            if column is not None:
                del column[start:stop]

    def match(self, at: int, ids: Sequence[int], start: int, stop: int) -> int:
        """Return the end of the rows from ``at`` on that equal ``ids[start:stop]``; one does."""
        own, last = self.ids, at + 1
        if stop - start == 1 or last == len(own) or own[last] != ids[start + 1]:
            return last
        found = own[at : at + stop - start]
        if found == ids[start : start + len(found)]:
            return at + len(found)
        return at + list(map(eq, found, ids[start:stop])).index(False)

    def value(self, kind: int, at: int) -> int:
        """Return a field that may have no column."""
        column = self.columns[kind]
        return 0 if column is None else column[at]

    def take_over(self, other: "Block", start: int = 0) -> None:
        """Append the rows of ``other`` from ``start`` on."""
        count = len(other.ids) - start
        for kind in range(COLUMNS):
            theirs = other.columns[kind]
            if theirs is not None:
                self.column(kind).extend(theirs[start:])
                continue
            own = self.columns[kind]
            if own is not None:
                own.frombytes(bytes(8 * count))
        self.ids.extend(other.ids[start:])
        self.since.extend(other.since[start:])
        self.meta.extend(other.meta[start:])

    def cut(self, start: int) -> None:
        """Drop the rows from ``start`` on."""
        for column in (self.ids, self.since, self.meta, *self.columns):
            if column is not None:
                del column[start:]


Span = tuple[Block, int, int]
"""Rows of one block, from the first to before the last number."""


def _place(span: Span) -> tuple[int, int]:
    return span[0].first, span[1]


class Table:
    """All live messages of a queue."""

    __slots__ = ("blocks", "dead", "firsts", "groups", "tenants")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.firsts: list[int] = []  # the blocks' ``first``, for bisection
        self.groups = Groups()
        self.tenants = Names()
        self.dead: dict[int, Dead] = {}

    def __len__(self) -> int:
        return sum(len(block.ids) for block in self.blocks)

    def find(self, message_id: int) -> tuple[Block, int] | None:
        """Return the block and position of a message, None if it is not here."""
        number = bisect_right(self.firsts, message_id) - 1
        if number < 0:
            return None
        block = self.blocks[number]
        ids = block.ids
        at = bisect_left(ids, message_id)
        if at == len(ids) or ids[at] != message_id:
            return None
        return block, at

    def find_span(self, ids: Sequence[int], start: int) -> Span | None:
        """Return where ``ids[start]`` is, with as many of the next as follow it directly."""
        place = self.find(ids[start])
        if place is None:
            return None
        block, first = place
        return block, first, block.match(first, ids, start, len(ids))

    def get(self, message_id: int) -> Row | None:
        """Return a message."""
        place = self.find(message_id)
        return None if place is None else self.read(*place)

    def read(self, block: Block, at: int) -> Row:
        """Return the message at a position of a block."""
        meta = block.meta[at]
        message_id = block.ids[at]
        columns = block.columns
        due, token = columns[DUE], columns[TOKEN]
        always = (
            message_id,
            block.since[at],
            meta & STATE_MASK,
            meta >> PRIORITY_SHIFT & PRIORITY_MASK,
            meta >> DELIVERIES_SHIFT,
            0 if due is None else due[at],
            0 if token is None else token[at],
        )
        if not meta & UNUSUAL:
            return Row(*always)
        return Row(
            *always,
            block.value(EXPIRES, at),
            block.value(BODY, at),
            self.groups.by_number[block.value(GROUP, at)].name if meta & HAS_GROUP else b"",
            self.tenants.name(block.value(TENANT, at)) if meta & HAS_TENANT else b"",
            self.dead[message_id] if meta & HAS_DEAD else None,
        )

    def tail(self, block: Block, at: int, meta: int) -> bytes:
        """Return the tail of a message's canonical bytes: what follows its times and token."""
        columns = block.columns
        tail = b""
        if meta & HAS_EXPIRES:
            tail = _pack_u64(columns[EXPIRES][at])  # type: ignore[index]
        if meta & HAS_BODY:
            tail += _pack_u64(columns[BODY][at])  # type: ignore[index]
        if meta & HAS_GROUP:
            tail += self.groups.by_number[columns[GROUP][at]].tail  # type: ignore[index]
        if meta & HAS_TENANT:
            tail += self.tenants.tails[columns[TENANT][at]]  # type: ignore[index]
        if meta & HAS_DEAD:
            tail += encode_dead(self.dead[block.ids[at]])
        return tail

    def make_room(self, message_id: int) -> tuple[Block, int]:
        """Insert a row with nothing but a new id; return its block and position."""
        block, at = self._place_for(message_id)
        block.insert(at, message_id)
        return block, at

    def delete(self, spans: list[Span]) -> None:
        """Remove rows that nothing refers to any more."""
        if len(spans) == 1:
            ((block, first, last),) = spans
            block.delete(first, last)
            left = len(block.ids)
            if left < MERGE_ROWS and (not left & MERGE_MASK or last - first > 1):
                self.shrink(block)
            return
        # From the end, so that the remaining spans keep their positions.
        spans = sorted(spans, key=_place, reverse=True)
        for block, first, last in spans:
            block.delete(first, last)
        for block in dict.fromkeys(block for block, _, _ in spans):
            if len(block.ids) < MERGE_ROWS:
                self.shrink(block)

    def append_block(self, first: int) -> Block:
        """Return a new last block, for rows from ``first`` on."""
        block = Block(first)
        self.blocks.append(block)
        self.firsts.append(first)
        return block

    def shrink(self, block: Block) -> None:
        """Remove an empty block, or merge it with its neighbour if both are small."""
        number = bisect_right(self.firsts, block.first) - 1
        if not block.ids:
            del self.blocks[number], self.firsts[number]
            return
        for left in (number - 1, number):
            if 0 <= left < len(self.blocks) - 1:
                keeper, other = self.blocks[left], self.blocks[left + 1]
                if len(keeper.ids) + len(other.ids) <= BLOCK_ROWS // 2:
                    keeper.take_over(other)
                    del self.blocks[left + 1], self.firsts[left + 1]
                    return

    def rows(self, from_id: int = 0) -> Iterator[Row]:
        """Iterate over messages in the order of ids; the table must not change meanwhile."""
        for block, at in self.places(from_id):
            yield self.read(block, at)

    def places(self, from_id: int = 0) -> Iterator[tuple[Block, int]]:
        """Iterate over (block, position) of messages in the order of ids."""
        number = max(0, bisect_right(self.firsts, from_id) - 1)
        for block in self.blocks[number:]:
            for at in range(bisect_left(block.ids, from_id), len(block.ids)):
                yield block, at

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        columns = 0.0
        for block in self.blocks:
            used = COLUMNS - block.columns.count(None)
            columns += BLOCK_SIZE + len(block.ids) * (ROW_SIZE + COLUMN_SIZE * used)
        return {
            "columns": int(columns),
            "groups": self.groups.memory() + len(self.tenants) * NAME_SIZE,
            "dead": len(self.dead) * DEAD_SIZE,
        }

    def check(self) -> None:
        """Assert the invariants of this file."""
        assert self.firsts == [block.first for block in self.blocks]
        assert self.firsts == sorted(set(self.firsts)), "blocks out of order"
        previous = -1
        groups: dict[bytes, list[int]] = {}
        tenants: dict[bytes, int] = {}
        dead = set()
        for number, block in enumerate(self.blocks):
            assert block.ids, "an empty block"
            assert block.first <= block.ids[0], "a row before its block"
            assert number + 1 == len(self.firsts) or block.ids[-1] < self.firsts[number + 1]
            lengths = {len(block.ids), len(block.since), len(block.meta)}
            used = [kind for kind in range(COLUMNS) if block.columns[kind] is not None]
            assert block.has_columns == bool(used), used
            assert block.is_wide == any(kind > TOKEN for kind in used), used
            lengths |= {len(column) for column in block.columns if column is not None}
            assert len(lengths) == 1, f"columns of lengths {lengths}"
            for at in range(len(block.ids)):
                row = self.read(block, at)
                assert previous < row.id, f"{row.id} after {previous}"
                previous = row.id
                assert pack_meta(row) == block.meta[at], f"meta of {row.id}"
                if row.group:
                    groups.setdefault(row.group, []).append(row.id)
                if row.tenant:
                    tenants[row.tenant] = tenants.get(row.tenant, 0) + 1
                if row.dead is not None:
                    dead.add(row.id)
        self.groups.check(groups)
        assert tenants == self.tenants.counts(), "uses of tenant names"
        assert dead == set(self.dead), "dead letters that are not here"

    def _place_for(self, message_id: int) -> tuple[Block, int]:
        """Return the block and position for a new message, splitting a full block."""
        number = bisect_right(self.firsts, message_id) - 1
        is_last = number == len(self.blocks) - 1
        if not self.blocks:
            return self.append_block(message_id), 0
        if number < 0:
            number = 0
            self.blocks[0].first = self.firsts[0] = message_id
        block = self.blocks[number]
        if len(block.ids) < BLOCK_ROWS:
            return block, bisect_left(block.ids, message_id)
        if is_last and message_id > block.ids[-1]:
            return self.append_block(message_id), 0
        half = len(block.ids) // 2
        other = Block(block.ids[half])
        other.take_over(block, half)
        block.cut(half)
        self.blocks.insert(number + 1, other)
        insort(self.firsts, other.first)
        chosen = other if message_id >= other.first else block
        return chosen, bisect_left(chosen.ids, message_id)
