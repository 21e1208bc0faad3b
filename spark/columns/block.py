"""Verified entries of a shard as arrays over one buffer of plain payloads.

A ``Block`` is what every view decodes: the headers of some entries, in the order of the log, and
the bounds of their plain payloads in one buffer. Invariants:

* The bytes were verified before, by the checksum of their file or of each entry.
* No entry is refused (void), uncommitted or unwanted by type, owner or time.
* ``start[i] <= end[i] <= start[i + 1]``: payloads stand in the buffer in the order of the log.
* A block has at most ``BLOCK_BYTES_MAX`` bytes of plain payload, or one larger entry, and at most
  ``BLOCK_ENTRIES_MAX`` entries.

Compressed payloads are expanded when a payload of the block is first asked for. A block without
compressed payloads is a view of the stored bytes and copies nothing.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onelog.spark.columns.fields import Fields
from onelog.spark.columns.selection import Selection
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, HEADER_SIZE, PLAIN_SIZE_MAX, decompress
from onelog.ual.errors import CorruptPayload
from onelog.ual.segments.tables import Bytes, Indexes, gather_headers

BLOCK_BYTES_MAX = 8 << 20
BLOCK_ENTRIES_MAX = 65_536
# The largest distance between the first and last entry of a block: Arrow's offsets have 32 bits.
BLOCK_SPREAD_MAX = 1 << 30
FRAME_MAGIC = 0xFD2FB528  # opens a zstd frame

TYPE_BATCH = 0x000A

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
_Stored = tuple[Bytes, NDArray[np.int64]]  # and where each entry starts
_Plain = tuple[NDArray[np.uint8], Numbers, Numbers]


class Block:
    """Some entries of one shard; the module's docstring has the invariants."""

    __slots__ = ("_payloads", "headers", "shard", "transaction")

    def __init__(
        self,
        shard: int,
        data: NDArray[np.uint8],
        start: Numbers,
        end: Numbers,
        headers: NDArray[np.void],
        transaction: Indexes,
    ) -> None:
        self.shard = shard
        self.headers = headers  # of onelog.ual.segments.tables.ENTRY_DTYPE
        self.transaction = transaction  # index of the batch entry that opens it; 0: none
        self._payloads: _Plain | _Stored = (data, start, end)

    @classmethod
    def stored(
        cls,
        shard: int,
        data: Bytes,
        offsets: NDArray[np.int64],
        headers: NDArray[np.void],
        transaction: Indexes,
    ) -> "Block":
        """Return entries as they are stored, at ``offsets`` in ``data``.

        Payloads are expanded when one is first asked for: a reader of headers needs none.
        """
        block = cls.__new__(cls)
        block.shard = shard
        block.headers = headers
        block.transaction = transaction
        block._payloads = (data, offsets)
        return block

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The buffer that holds all plain payloads."""
        return self._plain()[0]

    @property
    def start(self) -> Numbers:
        """Where each plain payload starts in ``data``."""
        return self._plain()[1]

    @property
    def end(self) -> Numbers:
        """Where each plain payload ends in ``data``."""
        return self._plain()[2]

    def select(self, rows: NDArray[np.intp]) -> "Block":
        """Return the entries at ``rows``, which ascend."""
        headers, transaction = self.headers[rows], self.transaction[rows]
        if len(self._payloads) == 2:
            data, offsets = self._payloads
            return Block.stored(self.shard, data, offsets[rows], headers, transaction)
        plain, start, end = self._payloads
        return Block(self.shard, plain, start[rows], end[rows], headers, transaction)

    def _plain(self) -> "_Plain":
        if len(self._payloads) == 2:
            self._payloads = plain_payloads(*self._payloads, self.headers)
        return self._payloads


class Transactions:
    """Finds the batch that each entry belongs to, over consecutive pieces of a log."""

    __slots__ = ("_head", "_last")

    def __init__(self) -> None:
        self._head = np.uint64(0)  # the last batch entry so far
        self._last = np.uint64(0)  # the last entry that belongs to it

    def find(
        self,
        data: Bytes,
        offsets: NDArray[np.int64],
        headers: NDArray[np.void],
        visible: Mask | None = None,
    ) -> Indexes:
        """Return the index of each entry's batch entry; 0: it belongs to no batch.

        ``offsets`` are where the entries start in ``data``. ``visible`` tells which are not void
        (None: all). The payload of a refused batch entry may hold anything and is not read; the
        entries of its batch are void as well. If compaction has dropped a batch entry, the entries
        behind it belong to none.
        """
        found = np.zeros(len(headers), np.uint64)
        conditional = (headers["flags"] & np.uint16(FLAG_CONDITIONAL)) != 0
        if visible is not None:
            conditional &= visible
        if not conditional.any():
            return found
        heads = np.flatnonzero(conditional & (headers["entry_type"] == TYPE_BATCH))
        head_index = np.append(self._head, headers["index"][heads])
        head_last = np.append(self._last, _batch_ends(data, offsets[heads], headers[heads]))
        # The number of batch entries up to an entry tells which one it follows.
        follows = np.zeros(len(headers), np.intp)
        follows[heads] = 1
        follows = np.cumsum(follows)
        inside = conditional & (headers["index"] <= head_last[follows])
        found[inside] = head_index[follows][inside]
        self._head, self._last = head_index[-1], head_last[-1]
        return found


def _batch_ends(data: Bytes, offsets: NDArray[np.int64], headers: NDArray[np.void]) -> Indexes:
    """Return the last index of each batch, by the count in its batch entry."""
    ends: Indexes = headers["index"].copy()
    for part in _cut(data, offsets, headers):
        fields = Fields(*plain_payloads(data, offsets[part], headers[part]))
        fields.prefix()
        ends[part] += fields.u16().astype(np.uint64)
    return ends


def cut_blocks(
    shard: int,
    data: Bytes,
    offsets: NDArray[np.int64],
    *,
    voids: Indexes,
    selection: Selection,
    transactions: Transactions,
    headers: NDArray[np.void] | None = None,
) -> Iterator[Block]:
    """Yield blocks of the wanted entries that start at ``offsets`` in verified bytes.

    ``voids`` has the first and last index of each range that was refused. The pieces of one split
    are passed in order, with the same ``transactions``.
    """
    if headers is None:
        headers = gather_headers(data, offsets)
    visible = _not_void(headers["index"], voids)
    batches = transactions.find(data, offsets, headers, visible)
    wanted = visible & selection.wants_headers(headers)
    if not wanted.all():
        rows = np.flatnonzero(wanted)
        offsets, headers, batches = offsets[rows], headers[rows], batches[rows]
    # Blocks are slices: gathering the headers again would double the cost of this function.
    for part in _cut(data, offsets, headers):
        yield Block.stored(shard, data, offsets[part], headers[part], batches[part])


def plain_payloads(
    data: Bytes, offsets: NDArray[np.int64], headers: NDArray[np.void]
) -> tuple[NDArray[np.uint8], Numbers, Numbers]:
    """Return a buffer with the plain payloads in order, and where each starts and ends in it."""
    stored = np.frombuffer(data, np.uint8)
    starts, ends = _stored_bounds(offsets, headers)
    packed = np.flatnonzero(headers["flags"] & np.uint16(FLAG_ZSTD))
    if not len(packed):
        # Positions count from the first payload, because Arrow has 32 bits for them.
        base, stop = (starts[0], ends[-1]) if len(starts) else (0, 0)
        return stored[base:stop], starts - base, ends - base
    is_packed = np.zeros(len(starts), np.bool_)
    is_packed[packed] = True
    # Adjacent plain payloads are copied together, with the headers between them.
    follows = np.append(False, starts[1:] - ends[:-1] == HEADER_SIZE)
    follows[1:] &= ~is_packed[:-1]
    inner = follows & ~is_packed
    pieces = _pieces(memoryview(data), starts, ends, inner, is_packed)
    sizes = ends - starts
    sizes[packed] = [len(pieces[at]) for at in (np.cumsum(~inner) - 1)[packed].tolist()]
    new_ends = np.cumsum(sizes + inner * np.int64(HEADER_SIZE))
    return np.frombuffer(b"".join(pieces), np.uint8), new_ends - sizes, new_ends


def _stored_bounds(
    offsets: NDArray[np.int64], headers: NDArray[np.void]
) -> tuple[Numbers, Numbers]:
    """Return where the payloads of entries start and end in the stored bytes."""
    starts: Numbers = offsets.astype(np.int64) + HEADER_SIZE
    return starts, starts + headers["payload_len"].astype(np.int64)


def _pieces(
    view: memoryview, starts: Numbers, ends: Numbers, inner: Mask, is_packed: Mask
) -> list[bytes | memoryview]:
    """Return joined plain payloads and expanded ones, in order; ``inner`` join the one before."""
    firsts = np.flatnonzero(~inner)
    lasts = np.append(firsts[1:], len(starts)) - 1
    bounds = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return [
        decompress(bytes(view[start:end])) if packed else view[start:end]
        for (start, end), packed in zip(bounds, is_packed[firsts].tolist(), strict=True)
    ]


def _cut(data: Bytes, offsets: NDArray[np.int64], headers: NDArray[np.void]) -> Iterator[slice]:
    """Yield the entries of each block in turn: as many as its limits allow, at least one."""
    places = offsets.astype(np.int64)
    totals = np.cumsum(_plain_sizes(data, places, headers))
    first = 0
    while first < len(places):
        before = totals[first - 1] if first else 0
        stop = min(
            int(np.searchsorted(totals, before + BLOCK_BYTES_MAX, "right")),
            int(np.searchsorted(places, places[first] + BLOCK_SPREAD_MAX, "left")),
            first + BLOCK_ENTRIES_MAX,
        )
        stop = max(stop, first + 1)
        yield slice(first, stop)
        first = stop


def _plain_sizes(data: Bytes, offsets: NDArray[np.int64], headers: NDArray[np.void]) -> Numbers:
    """Return the size of each plain payload; a zstd frame says it in its header (RFC 8878)."""
    sizes: Numbers = headers["payload_len"].astype(np.int64)
    packed = np.flatnonzero(headers["flags"] & np.uint16(FLAG_ZSTD))
    if not len(packed):
        return sizes
    frames = Fields(
        np.frombuffer(data, np.uint8), *_stored_bounds(offsets[packed], headers[packed])
    )
    magic, descriptor = frames.u32(), frames.u8()
    is_single = (descriptor & np.uint8(0x20)) != 0
    code = descriptor >> np.uint8(6)
    if (magic != FRAME_MAGIC).any() or (descriptor & np.uint8(0x03)).any():
        raise CorruptPayload("not a zstd frame, or one that needs a dictionary")
    if (~is_single & (code == 0)).any():
        raise CorruptPayload("a zstd frame without its content size")
    frames.skip(1, ~is_single)  # the window descriptor
    # The field has one of four widths; a read of another width gives 0.
    content = frames.u8(code == 0).astype(np.uint64)
    content += frames.u16(code == 1) + (code == 1) * np.uint64(256)
    content += frames.u32(code == 2)
    content += frames.u64(code == 3)
    # A size above the limit is refused on expansion; here it must only not overflow.
    sizes[packed] = np.minimum(content, np.uint64(PLAIN_SIZE_MAX + 1))
    return sizes


def _not_void(indexes: Indexes, voids: Indexes) -> Mask:
    if not len(voids):
        return np.ones(len(indexes), np.bool_)
    at = np.searchsorted(voids[:, 0], indexes, "right") - 1
    # -1 stands for "before the first void": the comparison is made, but masked out.
    inside: Mask = (at >= 0) & (indexes <= voids[at, 1])
    return ~inside
