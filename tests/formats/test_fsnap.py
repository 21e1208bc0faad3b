"""The golden snapshot: what our code writes, what it reads, and what docs/snapshots.md says."""

import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from crc32c import crc32c

from onelog.projections.shard_state import build_projections
from onelog.snapshot.notes import decode_notes
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import hash_text, load_state
from onelog.ual.segments.notes import ApplyNotes
from tests.formats import fsnap_sample as sample
from tests.formats.golden import first_difference, golden_path, load_golden, parse_hex
from tests.simulation.disk import SimDisk

DOCUMENT = Path(__file__).parents[2] / "docs" / "snapshots.md"
TABLE_HEAD = "| offset | size | type | field | meaning | covered by |"
BLOCK = re.compile(r"^```hex (\S+) (\d+)\n((?:.*\n)*?)^```$", re.MULTILINE)


def opened(name: str = sample.NAME) -> SnapshotReader:
    disk = SimDisk()
    path = sample.PATH_BEFORE_HOLDS if name == sample.NAME_BEFORE_HOLDS else sample.PATH
    disk.put(path, load_golden(name))
    return SnapshotReader.open(disk, path)


def test_our_code_writes_the_golden_bytes() -> None:
    golden, built = load_golden(sample.NAME), sample.build()
    assert built == golden, (
        f"the bytes differ from offset {first_difference(golden, built)} on. Files like the golden "
        "one exist already. If this is on purpose, raise the version of the format, keep reading "
        "the old one, change docs/snapshots.md, and run python -m tests.formats.fsnap_sample"
    )
    assert sample.render() == golden_path(sample.NAME).read_text("ascii")


def test_the_golden_snapshot_is_read_as_it_was_written() -> None:
    reader = opened()
    reader.verify()
    header = reader.header
    assert (header.shard, header.index, header.term, header.proposal) == (2, 7, 3, 3)
    assert header.timestamp_ns == sample.START_NS + 2 * sample.SECOND_NS
    assert reader.section_types == (0x00, 0x01, 0x02, 0x03, 0x04, 0x10)
    covered = decode_notes(reader.chunks(0x10), header.index)
    assert covered.first_index == sample.NOTES_FROM_INDEX
    assert covered.notes.voids.tolist() == sample.VOIDS
    assert {at: found.tolist() for at, found in covered.notes.streams.items()} == sample.STREAMS


def test_the_golden_snapshot_holds_the_state_that_its_entries_lead_to() -> None:
    loaded, replayed = build_projections(ApplyNotes()), build_projections(ApplyNotes())
    load_state(opened(), loaded.router)
    for entry in sample.entries():
        replayed.router.apply(entry)
    assert hash_text(loaded.router) == hash_text(replayed.router)
    found = loaded.kv.get("default", b"greeting")
    assert found == replayed.kv.get("default", b"greeting")
    assert list(loaded.system.holds) == list(replayed.system.holds)
    assert [hold.name for hold in loaded.system.holds] == ["export"]
    loaded.router.check()


def test_a_snapshot_of_the_time_before_holds_is_still_read() -> None:
    """Directories hold such files; the system section of newer ones has another version."""
    loaded, replayed = build_projections(ApplyNotes()), build_projections(ApplyNotes())
    load_state(opened(sample.NAME_BEFORE_HOLDS), loaded.router)
    for entry in sample.entries()[:-1]:
        replayed.router.apply(entry)
    assert hash_text(loaded.router) == hash_text(replayed.router)
    assert list(loaded.system.holds) == []
    loaded.router.check()


def test_a_snapshot_of_the_time_before_filters_is_still_read() -> None:
    """The stream section of newer ones has another version."""
    loaded, replayed = build_projections(ApplyNotes()), build_projections(ApplyNotes())
    load_state(opened(sample.NAME_BEFORE_FILTERS), loaded.router)
    for entry in sample.entries():
        replayed.router.apply(entry)
    assert hash_text(loaded.router) == hash_text(replayed.router)
    loaded.router.check()


def test_a_snapshot_of_the_time_before_fingerprints_is_still_read() -> None:
    """The system section of newer ones has another version."""
    loaded, replayed = build_projections(ApplyNotes()), build_projections(ApplyNotes())
    load_state(opened(sample.NAME_BEFORE_FINGERPRINTS), loaded.router)
    for entry in sample.entries():
        replayed.router.apply(entry)
    assert hash_text(loaded.router) == hash_text(replayed.router)
    loaded.router.check()


def independent(data: bytes) -> dict[int, bytes]:
    """Read a snapshot by the document alone: struct, crc32c, and nothing of ours."""
    magic, version, _, count, *_, size = struct.unpack("<8sHHIQQQQQ", data[:56])
    crc, reserved = struct.unpack("<II", data[56:64])
    assert (magic, version, reserved) == (b"FLO_SNP\0", 1, 0)
    assert crc == crc32c(data[:56])
    assert size == len(data)
    file_crc, zero, end = struct.unpack("<II8s", data[-16:])
    assert (zero, end) == (0, b"FLO_SNE\0")
    assert file_crc == crc32c(data[:-16])
    sections: dict[int, bytes] = {}
    at = 64
    for _ in range(count):
        kind, padding, content_size, content_crc, section_crc = struct.unpack(
            "<B7sQII", data[at : at + 24]
        )
        assert section_crc == crc32c(data[at : at + 20])
        assert padding == bytes(7)
        assert kind > max(sections, default=-1)
        content = data[at + 24 : at + 24 + content_size]
        assert content_crc == crc32c(content)
        sections[kind] = content
        at += 24 + content_size
    assert at == len(data) - 16
    return sections


def test_a_reader_written_from_the_document_reads_the_golden_snapshot() -> None:
    sections = independent(load_golden(sample.NAME))
    reader = opened()
    assert sections == {kind: b"".join(reader.chunks(kind)) for kind in reader.section_types}
    notes = sections[0x10]
    version, stream_count, first_index, void_count = struct.unpack("<IIQQ", notes[:24])
    assert (version, first_index, void_count) == (1, sample.NOTES_FROM_INDEX, len(sample.VOIDS))
    numbers = iter(struct.unpack(f"<{(len(notes) - 24) // 8}Q", notes[24:]))
    assert [[next(numbers), next(numbers)] for _ in range(void_count)] == sample.VOIDS
    streams = {}
    for _ in range(stream_count):
        stream_id, record_count = next(numbers), next(numbers)
        streams[stream_id] = [next(numbers) for _ in range(record_count)]
    assert streams == sample.STREAMS
    assert next(numbers, None) is None


@pytest.mark.parametrize("block", BLOCK.findall(DOCUMENT.read_text("utf-8")), ids=lambda at: at[1])
def test_an_example_is_the_golden_bytes(block: tuple[str, str, str]) -> None:
    name, offset, text = block
    data = parse_hex(text)
    assert data == load_golden(name)[int(offset) : int(offset) + len(data)]
    assert len(data) >= 64


def test_no_example_is_left_unchecked() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert len(BLOCK.findall(text)) == text.count("```hex") == 3


def test_tables_of_bytes_have_no_holes() -> None:
    tables: list[list[list[str]]] = []
    is_inside = False
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if line == TABLE_HEAD:
            tables.append([])
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not line.startswith("|---"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    ends = []
    for rows in tables:
        assert rows[0][0] == "0"
        for (offset, size, *_), (following, *_) in pairwise(rows):
            assert int(offset) + int(size) == int(following), (rows[0], offset)
        ends.append(int(rows[-1][0]) + int(rows[-1][1]))
    assert ends == [64, 24, 16, 24]
