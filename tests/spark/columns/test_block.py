"""Blocks of verified entries: every wanted payload once, plain, in order and within bounds."""

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.conditions import Condition, Target
from onelog.projections.kv.commands import Put, encode_command
from onelog.projections.system.commands import encode_batch
from onelog.spark.columns import block as block_module
from onelog.spark.columns.block import (
    TYPE_BATCH,
    Block,
    Transactions,
    cut_blocks,
    plain_payloads,
)
from onelog.spark.columns.selection import Selection
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, PLAIN_SIZE_MAX, Draft, decompress
from onelog.ual.errors import CorruptPayload, PayloadTooLarge
from onelog.ual.segments.tables import gather_headers
from tests.spark.entries import NO_VOIDS, SHARD, cut, encode

# Small and large ones, of which some are packed, some are not worth it, and some are empty.
payloads = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda byte, size: bytes((byte,)) * size, st.integers(0, 255), st.integers(1_000, 3_000)
    ),
    st.builds(lambda seed: Random(seed).randbytes(1_500), st.integers(0, 9)),
)
drafts = st.lists(
    st.builds(Draft, st.sampled_from((0x0101, 0x0201, 0x0401)), payloads, st.just(0)), max_size=40
)


def payloads_of(blocks: list[Block]) -> list[bytes]:
    return [
        block.data[start:end].tobytes()
        for block in blocks
        for start, end in zip(block.start, block.end, strict=True)
    ]


@given(
    drafts,
    st.frozensets(st.sampled_from((0x0101, 0x0201, 0x0401))),
    st.integers(1, 9_000),
    st.integers(1, 12),
    st.integers(1, 4_000),
)
def test_blocks_hold_each_wanted_payload_once_and_keep_their_bounds(
    made: list[Draft], types: frozenset[int], bytes_max: int, entries_max: int, spread_max: int
) -> None:
    data, offsets = encode(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_module, "BLOCK_BYTES_MAX", bytes_max)
        patch.setattr(block_module, "BLOCK_ENTRIES_MAX", entries_max)
        patch.setattr(block_module, "BLOCK_SPREAD_MAX", spread_max)
        blocks = list(cut(data, offsets, Selection(types=types)))
    wanted = [number for number, draft in enumerate(made) if draft.entry_type in types]
    assert payloads_of(blocks) == [made[number].payload for number in wanted]
    indexes = [index for block in blocks for index in block.headers["index"].tolist()]
    assert indexes == [number + 1 for number in wanted]
    for block in blocks:
        sizes = block.end - block.start
        places = offsets[(block.headers["index"] - 1).astype(np.intp)]
        assert len(block) == 1 or sizes.sum() <= bytes_max
        assert len(block) <= entries_max
        assert len(block) == 1 or places[-1] - places[0] < spread_max
        assert (block.start[1:] >= block.end[:-1]).all()
        assert block.shard == SHARD
    # As few as the bounds allow: the next payload did not fit into the block before it.
    for before, after in pairwise(blocks):
        together = (before.end - before.start).sum() + after.end[0] - after.start[0]
        first, following = before.headers["index"][0], after.headers["index"][0]
        spread = offsets[int(following) - 1] - offsets[int(first) - 1]
        assert together > bytes_max or len(before) == entries_max or spread >= spread_max


def test_a_block_without_packed_payloads_is_a_view_of_the_stored_bytes() -> None:
    data, offsets = encode([Draft(0x0101, payload) for payload in (b"abc", b"", b"de", b"unread")])
    (block,) = cut(data, offsets[:3])
    assert np.shares_memory(block.data, np.frombuffer(data, np.uint8))
    assert len(block.data) == block.end[-1], "nothing behind the last payload can be read"


@pytest.mark.parametrize(
    ("name", "limit", "sizes"),
    [
        ("BLOCK_BYTES_MAX", 20, [2, 1]),  # the first two fill it
        ("BLOCK_BYTES_MAX", 19, [1, 1, 1]),
        ("BLOCK_ENTRIES_MAX", 2, [2, 1]),
        ("BLOCK_SPREAD_MAX", 50, [1, 1, 1]),  # the next entry is 50 bytes behind
        ("BLOCK_SPREAD_MAX", 51, [2, 1]),
    ],
)
def test_bounds_are_exact(
    name: str, limit: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_module, name, limit)
    blocks = list(cut(*encode([Draft(0x0101, b"0123456789")] * 3)))
    assert [len(block) for block in blocks] == sizes


def test_a_selected_block_has_the_same_payloads() -> None:
    made = [Draft(0x0101, b"%d" % number * (900 if number == 3 else 1)) for number in range(6)]
    (block,) = cut(*encode(made))
    part = block.select(np.array([1, 3, 5]))
    assert payloads_of([part]) == [made[number].payload for number in (1, 3, 5)]
    assert part.headers["index"].tolist() == [2, 4, 6]


def test_payloads_are_expanded_when_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of headers alone pays for no payload, and one of payloads once."""
    expanded: list[bytes] = []

    def expand(frame: bytes) -> bytes:
        expanded.append(frame)
        return decompress(frame)

    monkeypatch.setattr(block_module, "decompress", expand)
    made = [Draft(0x0101, bytes((number,)) * 2_000) for number in range(4)]
    (block,) = cut(*encode(made))
    assert len(block) == 4
    assert block.headers["index"].tolist() == [1, 2, 3, 4]
    part = block.select(np.array([0, 2]))
    assert expanded == []
    assert payloads_of([part]) == [made[0].payload, made[2].payload]
    assert payloads_of([block]) == payloads_of([block]) == [draft.payload for draft in made]
    assert len(expanded) == 6
    assert payloads_of([block.select(np.array([3]))]) == [made[3].payload]
    assert len(expanded) == 6


def packed(frame: bytes) -> tuple[bytes, Any]:
    """Return one entry whose stored payload is ``frame``, packed as its flag says."""
    return encode([Draft(0x0101, frame, FLAG_ZSTD), Draft(0x0101, b"after")])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_535, 65_791, 65_792, 70_000, 1 << 20])
@pytest.mark.parametrize("window_log", [10, 20])
def test_a_frame_of_any_header_says_how_large_its_payload_is(size: int, window_log: int) -> None:
    """With the size of its window or without, and content sizes of 1, 2 and 4 bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(size))
    assert bool(frame[4] & 0x20) == (size <= 1 << window_log), "no window if it holds all"
    data, offsets = packed(frame)
    sizes = block_module._plain_sizes(data, offsets, gather_headers(data, offsets))
    assert sizes.tolist() == [zstandard.frame_content_size(frame), 5] == [size, 5]
    assert payloads_of(list(cut(data, offsets))) == [bytes(size), b"after"]


def test_a_content_size_of_eight_bytes_is_read() -> None:
    head = b"\x28\xb5\x2f\xfd" + bytes((0xC0 | 0x20,))
    data, offsets = packed(head + (1_234).to_bytes(8, "little") + b"\0" * 9)
    sizes = block_module._plain_sizes(data, offsets, gather_headers(data, offsets))
    assert sizes.tolist() == [1_234, 5]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x28\xb5\x2f",
        b"\x28\xb5\x2f\xfd",
        b"\x28\xb5\x2f\xfd\xe0\0\0\0",  # ends in its content size
        b"\x29" + zstandard.compress(bytes(2_000))[1:],
        b"\x28\xb5\x2f\xfd\x00\x58\x00",  # no content size
        b"\x28\xb5\x2f\xfd\x21" + bytes(8),  # a dictionary
        zstandard.compress(bytes(range(256)) * 8)[:-3],
    ],
)
def test_a_damaged_frame_is_named_and_never_read(frame: bytes) -> None:
    data, offsets = packed(frame)
    with pytest.raises(CorruptPayload):
        payloads_of(list(cut(data, offsets)))
    void = np.array([[1, 1]], np.uint64)  # a refused entry may hold anything
    left = cut_blocks(
        SHARD, data, offsets, voids=void, selection=Selection(), transactions=Transactions()
    )
    assert payloads_of(list(left)) == [b"after"]


@pytest.mark.parametrize("size", [PLAIN_SIZE_MAX + 1, (1 << 64) - 3])
def test_a_frame_that_announces_too_much_is_refused_before_it_is_expanded(size: int) -> None:
    head = b"\x28\xb5\x2f\xfd" + bytes((0xC0 | 0x20,))
    with pytest.raises(PayloadTooLarge):
        payloads_of(list(cut(*packed(head + size.to_bytes(8, "little") + b"\0" * 9))))


def test_no_entries_have_no_payloads() -> None:
    data, start, end = plain_payloads(b"", np.empty(0, np.int64), gather_headers(b"", np.empty(0)))
    assert (len(data), len(start), len(end)) == (0, 0, 0)
    assert list(cut(b"", np.empty(0, np.int64))) == []


def put(number: int) -> Draft:
    return encode_command(Put(b"key", b"%d" % number), "default")


def batch(count: int, *, large: bool = False) -> list[Draft]:
    conditions = [
        Condition(b"condition-%d" % number, Target.EXISTS) for number in range(100 if large else 1)
    ]
    return encode_batch([put(number) for number in range(count)], conditions, "default")


def transactions_of(
    made: list[Draft],
    pieces: list[int],
    voids: list[tuple[int, int]],
    dropped: frozenset[int] = frozenset(),
) -> dict[int, int]:
    """Return the transaction of each visible entry, read in pieces that end at some entries."""
    data, offsets = encode(made)
    kept = np.array([n for n in range(len(made)) if n + 1 not in dropped], np.intp)
    found: dict[int, int] = {}
    state = Transactions()
    bounds = sorted({0, len(kept), *(min(piece, len(kept)) for piece in pieces)})
    for first, stop in pairwise(bounds):
        for block in cut_blocks(
            SHARD,
            data,
            offsets[kept[first:stop]],
            voids=np.array(voids, np.uint64).reshape(-1, 2),
            selection=Selection(),
            transactions=state,
        ):
            found |= zip(block.headers["index"].tolist(), block.transaction.tolist(), strict=True)
    return found


shapes = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=12)


@given(shapes, st.lists(st.integers(0, 60), max_size=5), st.frozensets(st.integers(1, 60)))
def test_each_entry_knows_its_batch_wherever_pieces_and_compaction_cut(
    parts: list[tuple[int, bool, bool]], pieces: list[int], dropped: frozenset[int]
) -> None:
    """Entries of a batch whose own entry is gone belong to none, and never to another batch."""
    made: list[Draft] = []
    expected: dict[int, int] = {}
    voids: list[tuple[int, int]] = []
    for count, is_large, is_refused in parts:
        first = len(made) + 1
        some = batch(count, large=is_large) if count else [put(0)]
        if is_refused:
            # What was refused may hold anything, in a batch entry, too.
            some[0] = Draft(some[0].entry_type, b"\xff" * 30, some[0].flags)
            voids.append((first, first + len(some) - 1))
        made += some
        if not is_refused:
            head = 0 if first in dropped or not count else first
            expected |= dict.fromkeys(range(first, len(made) + 1), head)
    expected = {index: head for index, head in expected.items() if index not in dropped}
    assert transactions_of(made, pieces, voids, dropped) == expected


def test_the_batch_entry_of_a_test_is_the_one_of_the_log() -> None:
    head, *rest = batch(2)
    assert head.entry_type == TYPE_BATCH
    assert all(draft.flags == FLAG_CONDITIONAL for draft in (head, *rest))
    assert transactions_of([put(1), *batch(2, large=True), put(2)], [], []) == {
        1: 0,
        2: 2,
        3: 2,
        4: 2,
        5: 0,
    }


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6))
def test_void_ranges_are_left_out(gaps: list[tuple[int, int]]) -> None:
    voids: list[tuple[int, int]] = []
    last = 0
    for gap, size in gaps:
        voids.append((last + gap + 1, last + gap + size))
        last = voids[-1][1]
    data, offsets = encode([put(number) for number in range(last + 2)])
    blocks = cut_blocks(
        SHARD,
        data,
        offsets,
        voids=np.array(voids, np.uint64).reshape(-1, 2) if voids else NO_VOIDS,
        selection=Selection(),
        transactions=Transactions(),
    )
    found = [index for block in blocks for index in block.headers["index"].tolist()]
    hidden = {index for first, end in voids for index in range(first, end + 1)}
    assert found == [index for index in range(1, last + 3) if index not in hidden]
