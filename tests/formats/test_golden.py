"""The golden files are what our code writes, and what it reads them as.

They stand for files on disks that no test can reach. Where one of these tests fails, either the
code broke by accident, or the format was changed on purpose: then it needs a new version.
"""

from pathlib import Path

import pytest
from crc32c import crc32c

from onelog.ual import manifest as manifest_file
from onelog.ual.directory import DataDirectory, ShardPaths, shard_paths
from onelog.ual.entry import FLAG_ZSTD, Entry, check_group, decode_entries
from onelog.ual.files import Files
from onelog.ual.hard_state import HardStateFile, inspect_hard_state
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import Cut, Survey, open_log
from onelog.ual.segments.format import SegmentHeader
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment
from tests.formats import samples
from tests.formats.generate import generate
from tests.formats.golden import (
    BYTES_PER_LINE,
    first_difference,
    golden_path,
    load_golden,
    parse_hex,
    render_hex,
)
from tests.formats.samples import SAMPLES, Sample
from tests.simulation.disk import SimDisk

REPRODUCIBLE = [sample for sample in SAMPLES if sample.is_reproducible]
DATA = Path("/data")
SMALL_LOG = LogConfig(ring_bytes=4096, free_bytes_min=0)
# Golden files that nothing writes any more and everything must still read.
OLD_VERSIONS = {"system_1"}


def decoded_group(data: bytes, first_index: int) -> list[Entry]:
    group = check_group(data, 0, first_index)
    assert len(group.data) == len(data)
    return decode_entries(group.data)


def opened_segment(name: str, first_index: int) -> SealedSegment:
    disk = SimDisk()
    path = Path("/segs") / f"{first_index:010d}.flseg"
    disk.put(path, load_golden(name))
    return SealedSegment.open(disk, path)


def entries_of(segment: SealedSegment) -> list[Entry]:
    return list(segment.entries(segment.first_index, segment.last_index))


def put_shard(disk: SimDisk, *, manifest: str) -> ShardPaths:
    """Lay out the golden files as the data directory that they are."""
    paths = shard_paths(DATA, 0)
    for path, name in (
        (DATA / "SYSTEM", "system"),
        (DATA / "NODE", "node"),
        (paths.manifest, manifest),
        (paths.hard_state, "raft"),
        (paths.segments / "0000000001.flseg", "compacted_segment"),
        (paths.segments / "0000000301.flseg", "sealed_segment"),
        (paths.segments / "0000000309.flseg.tmp", "unsealed_segment"),
    ):
        disk.put(path, load_golden(name))
    disk.make_directory(paths.snapshots)
    return paths


def open_golden_log(files: Files, paths: ShardPaths) -> tuple[Log, Survey]:
    hard_state = HardStateFile.open(files, paths.hard_state)
    return open_log(files, paths, hard_state, shard=0, config=SMALL_LOG)


# What is written


@pytest.mark.parametrize("sample", REPRODUCIBLE, ids=lambda sample: sample.name)
def test_our_code_writes_the_golden_bytes(sample: Sample) -> None:
    golden, built = load_golden(sample.name), sample.build()

    assert built == golden, (
        f"{sample.name}: the bytes differ from offset {first_difference(golden, built)} on. Files "
        "like the golden one exist already. If this is on purpose, raise the version of the "
        "format, keep reading the old one, change docs/formats.md, and run "
        "python -m tests.formats.generate"
    )


def test_generating_again_changes_no_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments and line breaks too, or the next change of a format would drown in noise."""
    monkeypatch.setattr(Path, "write_text", lambda path, *_: pytest.fail(f"{path} would change"))

    assert generate() == []


def test_every_golden_file_has_a_sample() -> None:
    found = {path.stem for path in golden_path("x").parent.glob("*.hex")}

    assert found - OLD_VERSIONS == {sample.name for sample in SAMPLES}


def test_comments_and_line_breaks_of_a_golden_file_are_not_bytes() -> None:
    data = bytes(range(BYTES_PER_LINE + 3))

    text = render_hex("A title with ff in it", data, {2: "a mark with aa in it"})

    assert parse_hex(text) == data
    assert parse_hex("00 01 # 02\n#03\n\n04") == b"\x00\x01\x04"
    with pytest.raises(ValueError, match="hexadecimal"):
        parse_hex("0g")


def test_the_checksum_is_the_one_that_the_document_names() -> None:
    assert crc32c(b"123456789") == 0xE3069283


# What is read


def test_the_golden_entry_and_group_are_read_as_they_were_written() -> None:
    assert decoded_group(load_golden("entry"), 7) == [samples.ENTRY]
    assert decoded_group(load_golden("group"), 8) == list(samples.GROUP)


def test_the_golden_zstd_entry_unpacks_to_its_payload() -> None:
    """Only this: another zstd library may pack it into other bytes, which are as good."""
    (entry,) = decoded_group(load_golden("zstd_entry"), 11)

    assert entry.flags == FLAG_ZSTD
    assert entry[2:6] == (3, 11, samples.START_NS + 2, 0)
    assert entry.plain_payload() == samples.ZSTD_PLAIN
    assert len(entry.payload) < len(samples.ZSTD_PLAIN)


def test_the_golden_unsealed_segment_is_read_as_it_was_written() -> None:
    data = load_golden("unsealed_segment")

    assert SegmentHeader.decode_identity("golden", data) == samples.UNSEALED.header
    first = check_group(data, 64, 309)
    second = check_group(data, 64 + len(first.data), 311, first.last_timestamp_ns)
    assert 64 + len(first.data) + len(second.data) == len(data)
    assert decode_entries(first.data) + decode_entries(second.data) == samples.UNSEALED.entries


def test_the_golden_sealed_segment_is_read_as_it_was_written() -> None:
    segment = opened_segment("sealed_segment", 301)

    segment.check_file()
    notes = segment.notes()
    assert segment.header.identity() == samples.SEALED.header
    assert not segment.is_compacted
    assert (segment.last_index, segment.entry_count) == (308, 8)
    assert entries_of(segment) == samples.SEALED.entries
    assert [segment.seek_time(time_ns) for time_ns, _ in samples.SEALED_TIMES] == [301, 305, 307]
    assert segment.owner_counts == (0, 1, 1, 1, 5, *[0] * 11)
    assert {key: tuple(value) for key, value in notes.streams.items()} == samples.SEALED.streams
    assert [tuple(row) for row in notes.voids.tolist()] == list(samples.SEALED.voids)
    assert [segment.proposal_at(number) for number in range(101, 105)] == [
        (301, 303),
        (304, 304),
        (305, 306),
        (307, 308),
    ]


def test_the_golden_compacted_segment_is_read_as_it_was_written() -> None:
    segment = opened_segment("compacted_segment", 1)

    segment.check_file()
    notes = segment.notes()
    assert segment.is_compacted
    assert (segment.first_index, segment.last_index, segment.entry_count) == (1, 300, 6)
    assert (segment.first_timestamp_ns, segment.last_timestamp_ns) == (
        samples.START_NS,
        samples.START_NS + 9_900_000_000,
    )
    assert entries_of(segment) == samples.KEPT_ENTRIES
    assert {key: value.tolist() for key, value in notes.streams.items()} == samples.KEPT_STREAMS
    assert [tuple(row) for row in notes.voids.tolist()] == samples.KEPT_VOIDS
    for time_ns, index in samples.KEPT_TIMES:
        assert segment.seek_time(time_ns) == index


def test_the_golden_emptied_segment_covers_its_range_and_holds_nothing() -> None:
    segment = opened_segment("emptied_segment", 1)

    segment.check_file()
    assert (segment.first_index, segment.last_index, segment.entry_count) == (1, 300, 0)
    assert entries_of(segment) == []
    assert segment.notes().streams == {}


def test_the_golden_system_and_node_are_read_as_they_were_written() -> None:
    disk = SimDisk()
    put_shard(disk, manifest="manifest")

    directory = DataDirectory.open_existing(disk, DATA, lock=False)

    assert directory.system == samples.SYSTEM
    assert directory.node == samples.NODE


def test_a_system_file_of_the_first_version_is_still_read() -> None:
    disk = SimDisk()
    put_shard(disk, manifest="manifest")
    disk.put(DATA / "SYSTEM", load_golden("system_1"))

    assert DataDirectory.open_existing(disk, DATA, lock=False).system == samples.SYSTEM_1


def test_the_golden_manifests_are_read_as_they_were_written() -> None:
    disk, path = SimDisk(), Path("/MANIFEST")
    for name, expected in (
        ("manifest", samples.MANIFEST),
        ("manifest_2", samples.MANIFEST_2),
        ("manifest_cut", samples.MANIFEST_CUT),
    ):
        disk.put(path, load_golden(name))
        assert manifest_file.load(disk, path) == expected


def test_the_golden_raft_file_is_read_as_it_was_written() -> None:
    report = inspect_hard_state(load_golden("raft"))

    assert report.problems == ()
    assert [slot.state for slot in report.slots] == [samples.HARD_STATE] * 2
    assert report.hint.hint == samples.HINT


# All together


def test_the_golden_files_are_a_shard_whose_log_opens() -> None:
    disk = SimDisk()
    paths = put_shard(disk, manifest="manifest")

    log, found = open_golden_log(disk, paths)

    assert found.actions == []
    assert (log.first_index, log.commit_index, log.last_index) == (1, 310, 311)
    assert (log.last_proposal, log.generation) == (106, 0)
    assert list(log.scan(1)) == samples.SHARD_ENTRIES[:-1]
    log.check()


def test_the_log_finishes_the_cut_that_the_golden_manifest_intends() -> None:
    disk = SimDisk()
    paths = put_shard(disk, manifest="manifest_cut")

    log, found = open_golden_log(disk, paths)

    (cut,) = found.actions
    assert isinstance(cut, Cut)
    assert cut.size_before - cut.size == 40 + len(b"last")
    assert (log.last_index, log.last_proposal, log.generation) == (310, 105, 1)
    assert (log.manifest.snapshots, log.manifest.cold) == (
        samples.MANIFEST_CUT.snapshots,
        samples.MANIFEST_CUT.cold,
    )
    active = log.segments.segments[-1]
    assert isinstance(active, UnsealedSegment)
    assert disk.contents(active.path) == load_golden("unsealed_segment")[: cut.size]
