"""Sealing: what it writes, what it refuses, and what a crash or a full disk leaves."""

import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.entry import Group
from onelog.ual.errors import CorruptFile
from onelog.ual.files import DiskFiles
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE, Footer, SegmentHeader
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import seal_segment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.segments.segment_files import (
    DIRECTORY,
    CrashRecorder,
    SegmentModel,
    make_model,
    put_unsealed,
    seal,
    sealed_bytes,
    segment_models,
)
from tests.ual.shards import check_groups

MODEL = make_model(Random(11), group_sizes=[1, 3, 2], first_index=500, stream_count=2)


def assert_holds(disk: SimDisk, path: Path, model: SegmentModel) -> None:
    segment = SealedSegment.open(disk, path)
    segment.check_file()
    assert list(segment.entries(segment.first_index, segment.last_index)) == model.entries
    found = {key: records.tolist() for key, records in segment.notes().streams.items()}
    assert found == model.records


def test_sealing_renames_the_file_and_keeps_its_entries() -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)

    sealed_path = seal(disk, MODEL, path)

    assert disk.list(DIRECTORY) == ["0000000500.flseg"]
    assert sealed_path == DIRECTORY / "0000000500.flseg"
    assert disk.contents(sealed_path)[HEADER_SIZE:].startswith(MODEL.data[HEADER_SIZE:])
    assert_holds(disk, sealed_path, MODEL)
    # What the file is called and what it holds survives a power loss from here on.
    assert_holds(disk.crash(CrashPolicy.LOST), sealed_path, MODEL)


def test_sealing_works_on_the_real_disk(tmp_path: Path) -> None:
    files, path = DiskFiles(), MODEL.unsealed_path(tmp_path)
    path.write_bytes(MODEL.data)

    sealed_path = seal(files, MODEL, path)

    assert [found.name for found in tmp_path.iterdir()] == ["0000000500.flseg"]
    assert sealed_path.read_bytes() == sealed_bytes(MODEL)


@given(segment_models())
@settings(max_examples=40, deadline=None)
def test_the_sealed_file_is_laid_out_as_documented(model: SegmentModel) -> None:
    data, entries = sealed_bytes(model), model.entries

    header = SegmentHeader.decode("x", data[:HEADER_SIZE])
    footer = Footer.decode("x", data[-FOOTER_SIZE:], len(data) - FOOTER_SIZE)
    footer.check("x", header, data[:HEADER_SIZE], len(data))
    assert header == replace(
        model.header,
        last_index=entries[-1].index,
        first_timestamp_ns=entries[0].timestamp_ns,
        last_timestamp_ns=entries[-1].timestamp_ns,
        entry_count=len(entries),
    )
    assert data[HEADER_SIZE : footer.entries_end] == model.data[HEADER_SIZE:]
    assert footer.file_crc == crc32c(data[: len(data) - 12])
    for owner in range(16):
        assert footer.owner_counts[owner] == sum(entry.owner == owner for entry in entries)
    tables = [data[span.position : span.end] for span in footer.spans]
    assert [crc32c(table) for table in tables] == [span.crc for span in footer.spans]
    assert [at for (at,) in struct.iter_unpack("<I", tables[0])] == model.offsets()
    assert tables[1] == b""
    sparse = list(
        zip(range(header.first_index, 1 << 65, 256), model.offsets()[::256], strict=False)
    )
    assert list(struct.iter_unpack("<QI", tables[2])) == sparse
    gaps = [
        data[end : span.position]
        for end, span in zip(
            [footer.entries_end, *(span.end for span in footer.spans)], footer.spans, strict=False
        )
    ]
    assert not any(b"".join(gaps))
    assert max(len(gap) for gap in gaps) < 8


def test_any_damaged_bit_of_the_entries_is_found_and_the_file_left_as_it_is() -> None:
    """The checksum of the file would vouch for the bit from then on."""
    starts = MODEL.offsets()
    for bit in range(HEADER_SIZE * 8, len(MODEL.data) * 8, 3):
        disk = SimDisk()
        path = put_unsealed(disk, MODEL)
        disk.flip(path, bit)
        damaged = disk.contents(path)
        with pytest.raises(CorruptFile, match="checksum") as caught:
            seal(disk, MODEL, path)
        assert caught.value.path == str(path)
        assert caught.value.offset == max(start for start in starts if start <= bit // 8)
        assert disk.list(DIRECTORY) == [path.name]
        assert disk.contents(path) == damaged


def test_a_header_of_another_segment_is_refused() -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    disk.put(path, replace(MODEL.header, shard=9).encode() + MODEL.data[HEADER_SIZE:])
    with pytest.raises(CorruptFile, match="header is not the one"):
        seal(disk, MODEL, path)


def test_a_file_that_ends_before_its_entries_do_is_refused() -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    disk.put(path, MODEL.data[:-1])
    with pytest.raises(CorruptFile, match="ends before"):
        seal(disk, MODEL, path)


def forge(group: Group, number: int, field: str, change: Callable[[int], int]) -> Group:
    """Change a header field of an entry and make its checksum right again."""
    at, size = {
        "type": (4, 2),
        "flags": (6, 2),
        "index": (16, 8),
        "time": (24, 8),
        "left": (36, 4),
    }[field]
    data = bytearray(group.data)
    start = group.offsets[number]
    end = [*group.offsets, len(data)][number + 1]
    value = int.from_bytes(data[start + at : start + at + size], "little")
    data[start + at : start + at + size] = change(value).to_bytes(size, "little")
    data[start : start + 4] = struct.pack("<I", crc32c(data[start + 4 : end]))
    return group._replace(data=bytes(data))


@pytest.mark.parametrize(
    ("number", "field", "change", "rule"),
    [
        (1, "index", lambda index: index + 1, "index"),
        (0, "time", lambda _: 0, "timestamp"),
        (1, "left", lambda _: 5, "group_left"),
        (2, "left", lambda _: 1, "group_left"),
        (1, "type", lambda _: 0x1001, "unknown owner"),
        (1, "flags", lambda _: 4, "unknown flags"),
    ],
)
def test_entries_that_break_a_rule_of_the_log_are_refused(
    number: int, field: str, change: Callable[[int], int], rule: str
) -> None:
    """Their checksums are right: somebody wrote them so, and it was not the log."""
    groups = list(MODEL.groups)
    groups[1] = forge(groups[1], number, field, change)
    model = replace(MODEL, groups=groups)
    disk = SimDisk()
    path = put_unsealed(disk, model)
    with pytest.raises(CorruptFile, match=rule):
        seal(disk, model, path)


def test_a_group_that_is_not_closed_is_refused() -> None:
    groups = [*MODEL.groups[:-1], forge(MODEL.groups[-1], 0, "left", lambda _: 2)]
    groups[-1] = forge(groups[-1], 1, "left", lambda _: 1)
    model = replace(MODEL, groups=groups)
    disk = SimDisk()
    path = put_unsealed(disk, model)
    with pytest.raises(CorruptFile, match="not closed"):
        seal(disk, model, path)


def test_offsets_that_miss_an_entry_are_refused() -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    offsets = MODEL.offsets()
    del offsets[2]
    with pytest.raises(CorruptFile):
        seal_segment(disk, path, MODEL.header, offsets, len(MODEL.data), SegmentNotes())


@pytest.mark.parametrize("leftover", [b"x", bytes(4096), b"FLO_END\0" * 100])
def test_what_stands_behind_the_entries_is_dropped(leftover: bytes) -> None:
    """An earlier seal that failed, or space that was allocated ahead."""
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    disk.put(path, MODEL.data + leftover)

    assert disk.contents(seal(disk, MODEL, path)) == sealed_bytes(MODEL)


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_failed_seal_leaves_the_unsealed_file_and_can_be_repeated(operation: str) -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    disk.fail(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Input/output error"):
        seal(disk, MODEL, path)
    assert disk.list(DIRECTORY) == [path.name]

    assert disk.contents(seal(disk, MODEL, path)) == sealed_bytes(MODEL)


def test_a_full_disk_gets_its_space_back() -> None:
    disk = SimDisk()
    path = put_unsealed(disk, MODEL)
    disk.capacity = len(MODEL.data) + 100
    with pytest.raises(OSError, match="No space left"):
        seal(disk, MODEL, path)
    assert len(disk.contents(path)) == len(MODEL.data)
    assert disk.free_bytes(DIRECTORY) == 100


def assert_recoverable(disk: SimDisk, model: SegmentModel) -> str:
    """Check what a crash left: entries that can be sealed again, or the whole sealed file."""
    (name,) = disk.list(DIRECTORY)
    path = DIRECTORY / name
    if name.endswith(".tmp"):
        data = disk.contents(path)
        assert SegmentHeader.decode_identity(name, data) == model.header
        entries = data[HEADER_SIZE : len(model.data)]
        assert [group.data for group in check_groups(entries, model.header.first_index)] == [
            group.data for group in model.groups
        ]
        path = seal(disk, model, path)
    assert_holds(disk, path, model)
    return name


@given(seed=st.integers(0, 1 << 32), leftover=st.sampled_from((b"", b"of an earlier seal" * 40)))
@settings(max_examples=6, deadline=None)
def test_a_crash_at_any_point_leaves_the_entries_or_the_sealed_file(
    seed: int, leftover: bytes
) -> None:
    model = make_model(Random(seed), group_sizes=[4, 40, 1], payload_size_max=40)
    disk = SimDisk(page_size=512, tear_writes=True)
    path = put_unsealed(disk, model)
    disk.put(path, model.data + leftover)
    crashes = CrashRecorder(disk, seed)

    disk.after_operation = crashes.record
    sealed_path = seal(disk, model, path)

    names = crashes.check(lambda left: assert_recoverable(left, model))
    assert names == {path.name, sealed_path.name}
