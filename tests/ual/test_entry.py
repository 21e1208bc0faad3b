"""The entry codec: round trips, and every way in which bytes can be wrong."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from random import Random

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from onelog.ual.entry import (
    COMPRESS_SIZE_MIN,
    FLAG_CONDITIONAL,
    FLAG_ZSTD,
    GROUP_ENTRIES_MAX,
    GROUP_SIZE_MAX,
    HEADER,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    Draft,
    Entry,
    Group,
    check_entry,
    check_group,
    compress,
    decode_entries,
    decode_entry,
    decompress,
    encode_group,
)
from onelog.ual.errors import (
    CorruptEntry,
    CorruptPayload,
    EntryError,
    GroupTooLarge,
    PayloadTooLarge,
    TornEntry,
)
from tests.ual.shards import check_groups

payloads = st.binary(max_size=60) | st.binary(min_size=1, max_size=3).map(lambda b: b * 1000)
drafts = st.builds(
    Draft,
    st.integers(0, 0x04FF),
    payloads,
    st.sampled_from([0, FLAG_CONDITIONAL]),
)
groups = st.builds(
    lambda items, term, index, time: encode_group(
        items, term=term, first_index=index, timestamp_ns=time
    ),
    st.lists(drafts, min_size=1, max_size=6),
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**63),
    st.integers(0, 2**63),
)


def encode(*payload: bytes, index: int = 1, term: int = 1, time_ns: int = 0) -> Group:
    return encode_group(
        [(0x0101, part, 0) for part in payload],
        term=term,
        first_index=index,
        timestamp_ns=time_ns,
    )


def forge(**fields: int) -> bytes:
    """Encode an entry with any field, and a checksum that holds."""
    values = {"kind": 0x0101, "flags": 0, "term": 1, "index": 1, "time": 5, "size": 3, "left": 0}
    values |= fields
    rest = HEADER.pack(0, *values.values())[4:] + b"abc"
    return crc32c(rest).to_bytes(4, "little") + rest


@given(st.lists(drafts, min_size=1, max_size=6), st.integers(1, 2**60))
def test_any_group_round_trips(items: list[Draft], first_index: int) -> None:
    group = encode_group(items, term=7, first_index=first_index, timestamp_ns=9)

    checked = check_group(group.data, 0, first_index)
    entries = decode_entries(checked.data)

    assert checked == group
    assert [entry.plain_payload() for entry in entries] == [item.payload for item in items]
    assert [entry.entry_type for entry in entries] == [item.entry_type for item in items]
    assert [entry.flags & ~FLAG_ZSTD for entry in entries] == [item.flags for item in items]
    assert [entry.index for entry in entries] == list(range(first_index, first_index + len(items)))
    assert [entry.group_left for entry in entries] == list(range(len(items)))[::-1]
    assert {(entry.term, entry.timestamp_ns) for entry in entries} == {(7, 9)}


@given(st.lists(st.lists(drafts, min_size=1, max_size=4), max_size=5), st.data())
def test_a_log_cut_at_any_byte_keeps_its_whole_groups(
    written: list[list[Draft]], data: st.DataObject
) -> None:
    """A crash may stop the disk anywhere: the group it was in is lost, never more."""
    encoded: list[Group] = []
    index = 1
    for items in written:
        encoded.append(encode_group(items, term=1, first_index=index, timestamp_ns=0))
        index += len(items)
    raw = b"".join(group.data for group in encoded)
    cut = data.draw(st.integers(0, len(raw)), label="cut")

    kept: list[Group] = []
    with suppress(TornEntry):
        for group in check_groups(raw[:cut], 1):
            kept.append(group)  # noqa: PERF402 - the generator may raise after some

    ends = list(accumulate(len(group.data) for group in encoded))
    assert kept == encoded[: sum(end <= cut for end in ends)]


@given(groups, st.data())
def test_any_flipped_bit_is_found(group: Group, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(group.data) * 8 - 1), label="bit")
    damaged = bytearray(group.data)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(EntryError):
        check_group(bytes(damaged), 0, group.first_index)


@given(st.binary(max_size=200))
def test_random_bytes_are_an_entry_error_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(EntryError):
        check_group(noise, 0, 1)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"index": 2}, "index 2 where 1 belongs"),
        ({"flags": 4}, "unknown flags 0x0004"),
        ({"kind": 0x1000}, "unknown owner 0x10"),
        ({"time": 4}, "timestamp 4 after 5"),
        ({"size": PAYLOAD_SIZE_MAX + 1}, "payload_len"),
        ({"left": GROUP_ENTRIES_MAX}, "group_left"),
    ],
)
def test_an_entry_with_a_valid_checksum_and_a_wrong_field_is_named(
    fields: dict[str, int], rule: str
) -> None:
    with pytest.raises(CorruptEntry, match=rule) as caught:
        check_group(b"__" + forge(**fields), 2, 1, 5)
    assert caught.value.offset == 2


@pytest.mark.parametrize(
    ("second", "rule"),
    [
        ({"index": 2, "term": 2}, "term 2 in a group of term 1"),
        ({"index": 2, "left": 1}, "group_left 1 where 0 belongs"),
        ({"index": 3}, "index 3 where 2 belongs"),
    ],
)
def test_entries_that_do_not_form_a_group_are_named(second: dict[str, int], rule: str) -> None:
    with pytest.raises(CorruptEntry, match=rule):
        check_group(forge(left=1) + forge(**second), 0, 1)


def test_a_length_beyond_the_buffer_is_torn_not_read() -> None:
    with pytest.raises(TornEntry, match="payload"):
        check_group(forge(size=4), 0, 1)
    with pytest.raises(TornEntry, match="payload"):
        check_entry(forge(size=4), 0, 1)


def test_a_group_that_is_not_closed_is_torn() -> None:
    with pytest.raises(TornEntry, match="header"):
        check_group(forge(left=1), 0, 1)


def test_check_entry_reads_one_entry_of_many() -> None:
    group = encode(b"one", b"two", index=5)

    entry = check_entry(group.data, group.offsets[1], 6)

    assert entry == Entry(0x0101, 0, 1, 6, 0, 0, b"two")
    assert entry == decode_entry(group.data[group.offsets[1] :])
    with pytest.raises(CorruptEntry, match="index 6 where 7 belongs"):
        check_entry(group.data, group.offsets[1], 7)


def test_a_group_beyond_the_limits_is_refused_before_anything_is_written() -> None:
    with pytest.raises(GroupTooLarge, match="entries"):
        encode_group(
            [(0x0101, b"", 0)] * (GROUP_ENTRIES_MAX + 1), term=1, first_index=1, timestamp_ns=0
        )
    noise = Random(1).randbytes(GROUP_SIZE_MAX)  # does not compress
    with pytest.raises(GroupTooLarge, match="bytes"):
        encode(noise)
    assert len(encode(noise[:PAYLOAD_SIZE_MAX]).data) == GROUP_SIZE_MAX


def test_small_payloads_are_stored_plain_and_large_ones_compressed_when_it_pays() -> None:
    just_below, just_enough = b"a" * (COMPRESS_SIZE_MIN - 1), b"a" * COMPRESS_SIZE_MIN
    small, large = decode_entries(encode(just_below, just_enough).data)

    assert (small.flags, small.payload) == (0, just_below)
    assert large.flags == FLAG_ZSTD
    assert len(large.payload) < 100
    assert large.plain_payload() == just_enough


def test_a_payload_that_saves_less_than_a_fifth_is_stored_plain() -> None:
    noise = Random(2).randbytes(2000)
    assert compress(noise) is None
    assert compress(noise[:1650] + bytes(350)) is None
    assert compress(noise[:1500] + bytes(500)) is not None


def test_the_middle_of_a_large_payload_tells_whether_it_is_tried() -> None:
    noise = Random(3).randbytes(6000)
    assert compress(bytes(2000) + noise + bytes(2000)) is None
    packed = compress(noise[:3000] + bytes(4000) + noise[3000:])
    assert packed is not None
    assert decompress(packed) == noise[:3000] + bytes(4000) + noise[3000:]


def test_threads_decompress_at_the_same_time() -> None:
    plain = [bytes([number]) * 500_000 + b"end" for number in range(16)]
    packed = [compress(each) for each in plain]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            assert list(threads.map(decompress, packed)) == plain


def test_a_decompression_bomb_is_an_error_before_memory_is_taken() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(2 << 20))
    entry = Entry(0x0101, FLAG_ZSTD, 1, 1, 0, 0, bomb)

    with pytest.raises(PayloadTooLarge) as caught:
        entry.plain_payload(1 << 20)
    assert caught.value.size == 2 << 20


def test_what_is_not_a_sized_zstd_frame_is_a_named_error() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2000))
    good = zstandard.ZstdCompressor().compress(bytes(2000))
    for wrong in (b"not zstd at all", unsized, good[:-1], good + b"more", b""):
        with pytest.raises(CorruptPayload):
            decompress(wrong)


@given(st.binary(max_size=40))
def test_random_bytes_never_decompress_by_surprise(noise: bytes) -> None:
    with pytest.raises((CorruptPayload, PayloadTooLarge)):
        decompress(noise)


def test_the_header_is_forty_bytes_in_the_documented_order() -> None:
    data = encode(b"xyz", index=3, term=2, time_ns=7).data
    assert len(data) == HEADER_SIZE + 3
    assert data[4:6] == b"\x01\x01"
    assert data[8:16] == (2).to_bytes(8, "little")
    assert data[16:24] == (3).to_bytes(8, "little")
    assert data[24:32] == (7).to_bytes(8, "little")
    assert data[32:36] == (3).to_bytes(4, "little")
    assert data[36:40] == bytes(4)
