"""A reader that was written from docs/formats.md reads the golden files as our code does.

This pins the document: if that reader can read what we write, so can somebody else's.
"""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from onelog.ual.entry import FLAG_ZSTD
from tests.formats import independent_reader as reader
from tests.formats import independent_shard, samples
from tests.formats.golden import load_golden
from tests.formats.samples import SegmentSample

READER_LINES_MAX = 150
RAFT_STATE = [2, 2, UUID("a1b2c3d4-e5f6-4718-8293-a4b5c6d7e8f9").bytes]  # sequence, term, vote
RAFT_HINT = [310, 311, 0]  # commit index, durable index, generation


def test_the_reader_is_short_and_imports_nothing_of_ours() -> None:
    """Otherwise it would prove nothing about the document."""
    for module, own in ((reader, ()), (independent_shard, (reader.__name__,))):
        text = Path(str(module.__file__)).read_text()
        imported = {
            name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
            )
        }
        assert {name for name in imported if name not in sys.stdlib_module_names} <= set(own)
        assert len(text.splitlines()) <= READER_LINES_MAX


@given(st.binary(max_size=64))
def test_its_checksum_is_ours(data: bytes) -> None:
    assert reader.crc32c(data) == crc32c(data)


def test_its_checksum_has_the_check_value_of_the_document() -> None:
    assert reader.crc32c(b"123456789") == 0xE3069283


# The golden files


def test_it_reads_entries_and_groups() -> None:
    entry, group = load_golden("entry"), load_golden("group")

    assert reader.read_group(entry, 0, 7) == ([tuple(samples.ENTRY)], len(entry))
    assert reader.read_group(group, 0, 8) == (list(map(tuple, samples.GROUP)), len(group))


def test_it_tells_how_large_a_compressed_payload_will_be() -> None:
    (entry,), _ = reader.read_group(load_golden("zstd_entry"), 0, 11)

    assert entry.flags == FLAG_ZSTD
    assert reader.zstd_content_size(entry.payload) == len(samples.ZSTD_PLAIN)


@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 1 << 20])
def test_it_reads_every_form_of_a_zstd_content_size(size: int) -> None:
    frame = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(size))

    assert reader.zstd_content_size(frame) == size


def check_identity(found: reader.Segment, sample: SegmentSample) -> None:
    header = sample.header
    shard, segment_id, first_index, first_proposal = found.identity
    assert (shard, segment_id) == (header.shard, header.segment_id)
    assert (first_index, first_proposal) == (header.first_index, header.first_proposal)


def test_it_reads_an_unsealed_segment() -> None:
    found = reader.read_unsealed(load_golden("unsealed_segment"))

    check_identity(found, samples.UNSEALED)
    assert found.entries == samples.UNSEALED.entries
    assert found.last_index == 311


def test_it_reads_a_sealed_segment_with_all_its_tables() -> None:
    found = reader.read_sealed(load_golden("sealed_segment"))

    check_identity(found, samples.SEALED)
    assert found.last_index == 308
    assert found.entries == samples.SEALED.entries
    assert found.times == samples.SEALED_TIMES
    assert found.streams == {7: [301, 304, 308], 300_000: [302, 305]}
    assert found.voids == [(303, 303), (306, 307)]


def test_it_reads_a_compacted_segment() -> None:
    found = reader.read_sealed(load_golden("compacted_segment"))

    check_identity(found, samples.BEFORE_COMPACTION)
    assert found.last_index == 300
    assert found.entries == samples.KEPT_ENTRIES
    assert found.times == samples.KEPT_TIMES
    assert found.streams == samples.KEPT_STREAMS
    assert found.voids == samples.KEPT_VOIDS


def test_it_reads_a_segment_of_which_nothing_is_left() -> None:
    found = reader.read_sealed(load_golden("emptied_segment"))

    check_identity(found, samples.BEFORE_COMPACTION)
    assert found == (found.identity, 300, [], [], {}, [])


def test_it_reads_system_and_node() -> None:
    system, node = reader.read_json(load_golden("system")), reader.read_json(load_golden("node"))

    assert UUID(system["cluster_id"]) == samples.SYSTEM.cluster_id
    assert (system["shards"], system["partitions"]) == (1, 256)
    assert system["created_at"] == samples.SYSTEM.created_at
    assert (system["cluster_name"], system["worker"], system["workers"]) == ("lake", 0, 1)
    assert [
        (UUID(each["node_id"]), each["name"], each["address"]) for each in system["founders"]
    ] == [(each.node_id, each.name, each.address) for each in samples.SYSTEM.founders]
    assert UUID(node["node_id"]) == samples.NODE.node_id
    assert (node["name"], node["created_at"]) == ("Zürich 1", samples.NODE.created_at)


def test_it_reads_a_manifest() -> None:
    found = reader.read_json(load_golden("manifest"))

    assert found["checkpoint"] == {
        "active_file": "0000000309.flseg.tmp",
        "commit_index": 310,
        "durable_index": 311,
        "end_index": 311,
        "end_proposal": 106,
        "first_index": 1,
        "first_proposal": 1,
        "generation": 0,
    }
    assert (found["cut_from_index"], found["snapshots"], found["cold"]) == (None, [], [])


def test_it_reads_a_manifest_with_everything_in_it() -> None:
    found = reader.read_json(load_golden("manifest_cut"))

    assert (found["cut_from_index"], found["checkpoint"]["generation"]) == (311, 1)
    assert found["snapshots"][1] == {
        "file": "0000000306.fsnap",
        "index": 306,
        "size": 5120,
        "state_hash": "a55a" * 16,
        "term": 2,
    }
    assert found["cold"][0] == {
        "crc32c": 0xE3069283,
        "first_index": 1,
        "last_index": 150,
        "object": "0f9a1c3e/00000/1-150.flseg",
        "size": 900,
    }
    assert [len(found["snapshots"]), len(found["cold"])] == [2, 2]


def test_it_reads_term_vote_and_hint() -> None:
    assert reader.read_raft(load_golden("raft")) == (RAFT_STATE, RAFT_HINT)


# Damage


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def some_bits(data: bytes) -> list[int]:
    """Return one bit of every byte; which one differs from byte to byte."""
    return [8 * at + at * 5 % 8 for at in range(len(data))]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("sealed_segment", reader.read_sealed),
        ("compacted_segment", reader.read_sealed),
        ("emptied_segment", reader.read_sealed),
        ("entry", lambda data: reader.read_group(data, 0, 7)),
        ("group", lambda data: reader.read_group(data, 0, 8)),
        ("zstd_entry", lambda data: reader.read_group(data, 0, 11)),
        ("system", reader.read_json),
        ("node", reader.read_json),
        ("manifest", reader.read_json),
        ("manifest_2", reader.read_json),
        ("manifest_cut", reader.read_json),
    ],
)
def test_it_refuses_a_flipped_bit(name: str, read: Callable[[bytes], Any]) -> None:
    data = load_golden(name)
    read(data)
    for bit in some_bits(data):
        with pytest.raises(ValueError):  # noqa: PT011 - which rule breaks depends on the bit
            read(flipped(data, bit))


def test_a_flipped_bit_in_an_unsealed_segment_costs_entries_but_changes_none() -> None:
    data = load_golden("unsealed_segment")
    for bit in some_bits(data):
        byte = bit // 8
        if byte < 32 or 60 <= byte < 64:
            with pytest.raises(ValueError, match=r"magic or header checksum"):
                reader.read_unsealed(flipped(data, bit))
            continue
        found = reader.read_unsealed(flipped(data, bit)).entries
        # The summary is ignored; the first group ends at 153.
        kept = 3 if byte < 60 else 0 if byte < 153 else 2
        assert found == samples.UNSEALED.entries[:kept], bit


def test_an_unsealed_segment_cut_at_any_byte_keeps_its_whole_groups() -> None:
    data = load_golden("unsealed_segment")
    for size in range(64, len(data) + 1):
        kept = 0 if size < 153 else 2 if size < len(data) else 3
        assert reader.read_unsealed(data[:size]).entries == samples.UNSEALED.entries[:kept]


def test_a_flipped_bit_in_raft_never_gives_another_state() -> None:
    """One slot may be bad, and a hint may be; two bad slots are refused."""
    data = load_golden("raft")
    records = [*range(52), *range(4096, 4096 + 52), *range(8192, 8192 + 44)]
    for byte in records:
        damaged = flipped(data, 8 * byte + byte % 8)
        hint = RAFT_HINT if byte < 8192 else []
        assert reader.read_raft(damaged) == (RAFT_STATE, hint)
        if byte < 52:
            with pytest.raises(ValueError, match="no whole slot"):
                reader.read_raft(flipped(damaged, 8 * (4096 + byte)))


def test_the_newer_one_of_two_raft_slots_counts() -> None:
    """As an interrupted save leaves them: slot 0 is written first."""
    data = load_golden("raft")
    record = bytearray(data[:48])
    record[16], record[24] = 3, 9  # sequence and term
    newer = bytes(record) + crc32c(bytes(record)).to_bytes(4, "little")

    state, _ = reader.read_raft(newer + data[len(newer) :])

    assert state == [3, 9, RAFT_STATE[2]]
