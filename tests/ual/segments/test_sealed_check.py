"""Sealed files: no table, count or entry can be wrong without being found, checksums or not."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from onelog.ual.offline.verify import Level, Link, check_chain
from onelog.ual.recovery import Known
from onelog.ual.segments.check import Part
from onelog.ual.segments.format import (
    ENTRIES_OFFSET,
    FOOTER_SIZE,
    HEADER_SIZE,
    Footer,
    SegmentHeader,
)
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import sealed_image
from tests.simulation.disk import SimDisk
from tests.ual.directories import Built, built_disk, check, fork, only


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


def reseal(data: bytes, footer: Footer, **changes: object) -> bytes:
    """Return a sealed file whose footer says something else, with all checksums right."""
    lying = replace(footer, **changes)  # type: ignore[arg-type]
    unfinished = lying.encode_unfinished()
    body = data[:-FOOTER_SIZE] + unfinished
    return body + struct.pack("<I", crc32c(body)) + b"FLO_END\0"


def read_footer(data: bytes) -> Footer:
    return Footer.decode("", data[-FOOTER_SIZE:], 0)


@pytest.mark.parametrize("table", ["offsets", "sparse", "time", "streams", "voids"])
def test_a_table_that_lies_with_right_checksums_is_found(
    healthy: tuple[SimDisk, Built], table: str
) -> None:
    """Whoever wrote it, a reader must not be sent to the wrong entry."""
    disk, built = healthy
    damaged = fork(disk)
    data = bytearray(disk.contents(built.sealed))
    footer = read_footer(bytes(data))
    span = getattr(footer, table)
    at = span.end - (1 if table == "streams" else 8 if table != "offsets" else 4)
    data[at] ^= 1
    changed = replace(span, crc=crc32c(bytes(data[span.position : span.end])))
    damaged.put(built.sealed, reseal(bytes(data), footer, **{table: changed}))
    findings = check(damaged, built)
    if table in ("streams", "voids"):
        # What apply said cannot be told from the entries; here it is only seen if it is absurd.
        assert all(finding.reason == "NOTES_DAMAGED" for finding in findings)
    else:
        assert only(findings).reason == "TABLE_DAMAGED"


@pytest.mark.parametrize("count", [0, 1, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("table", ["offsets", "indexes", "sparse", "time", "streams", "voids"])
def test_absurd_counts_are_found_and_allocate_nothing(
    healthy: tuple[SimDisk, Built], table: str, count: int
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    data = disk.contents(built.sealed)
    footer = read_footer(data)
    span = getattr(footer, table)
    if span.count == count:
        return
    damaged.put(built.sealed, reseal(data, footer, **{table: replace(span, count=count)}))
    finding = only(check(damaged, built))
    assert (finding.path, finding.level) == (built.sealed, Level.ERROR)
    assert finding.remedy is None


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        (slice(16, 24), 1, "index"),
        (slice(8, 16), 0, "term"),
        (slice(24, 32), 0, "timestamp"),
        (slice(6, 8), 0x0010, "flags"),
        (slice(4, 6), 0x2001, "owner"),
        (slice(36, 40), 9, "group_left"),
    ],
)
@pytest.mark.parametrize("which", ["sealed", "compacted"])
def test_wrong_entries_with_right_checksums_are_found(
    healthy: tuple[SimDisk, Built], which: str, field: slice, value: int, rule: str
) -> None:
    """Every checksum of the file is right, and still one entry breaks a rule."""
    disk, built = healthy
    path: Path = getattr(built, which)
    segment = SealedSegment.open(disk, path)
    data = bytearray(disk.contents(path))
    indexes = segment.columns(segment.first_index, segment.last_index).index
    starts, ends = segment.locate(indexes)
    start, end = int(starts[1]), int(ends[1])
    size = field.stop - field.start
    data[start + field.start : start + field.stop] = value.to_bytes(size, "little")
    data[start : start + 4] = struct.pack("<I", crc32c(bytes(data[start + 4 : end])))
    if rule != "owner":  # no footer has room to count it
        entries = bytes(data[ENTRIES_OFFSET : segment.footer.entries_end])
        image = sealed_image(segment.header, entries, starts.astype(np.uint32), segment.notes())
        data[:] = image.header + entries + image.tail
    damaged = fork(disk)
    damaged.put(path, bytes(data))
    finding = next(f for f in check(damaged, built) if f.reason == "ENTRY_DAMAGED")
    # A high number in an entry is noticed where the next one is lower, or does not go on with it.
    assert finding.offset in (start, end)
    assert rule in finding.message
    assert finding.remedy is None


def test_neighbours_must_agree(healthy: tuple[SimDisk, Built]) -> None:
    _, built = healthy
    known = Known(1, 1, 0, 0, None, 0)
    first = Part(built.sealed, 1, 10, 1, 4, (3, 5), (100, 200))
    second = Part(built.closed, 11, 20, 5, 4, (5, 6), (200, 300))

    def reasons(**changes: object) -> list[str]:
        after = replace(second, **changes)  # type: ignore[arg-type]
        links = [
            Link(1, first.path, is_sealed=True, part=first),
            Link(after.first_index, after.path, is_sealed=False, part=after),
        ]
        return [finding.reason for finding in check_chain(built.paths.segments, links, known)]

    assert reasons() == []
    assert reasons(first_proposal=6) == ["WRONG_PROPOSAL"]
    assert reasons(terms=(4, 6)) == ["WRONG_ORDER"]
    assert reasons(timestamps_ns=(199, 300)) == ["WRONG_ORDER"]
    assert reasons(first_index=12) == ["MISSING_RANGE"]
    assert reasons(first_index=10) == ["OVERLAP"]
    other = replace(known, first_proposal=2)
    link = Link(1, first.path, is_sealed=True, part=first)
    (finding,) = check_chain(built.paths.segments, [link], other)
    assert finding.reason == "WRONG_PROPOSAL"


def test_a_future_version_is_named_and_not_called_damage(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    for path in (built.sealed, built.active):
        damaged = fork(disk)
        data = bytearray(disk.contents(path))
        data[8:10] = struct.pack("<H", 9)
        data[60:64] = struct.pack("<I", crc32c(bytes(data[:32])))
        damaged.put(path, bytes(data))
        finding = next(f for f in check(damaged, built) if f.path == path)
        assert finding.reason == "UNKNOWN_VERSION"
        assert finding.remedy is None


def test_a_file_of_another_shard_or_index_is_found(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    for path, change, reason in (
        (built.sealed, {"shard": 3}, "WRONG_SHARD"),
        (built.active, {"shard": 3}, "WRONG_SHARD"),
        (built.active, {"first_index": 5}, "WRONG_NAME"),
    ):
        damaged = fork(disk)
        data = disk.contents(path)
        identity = replace(SegmentHeader.decode_identity("", data), **change).encode()
        lied = identity[:32] + data[32:60] + identity[60:] + data[64:]
        if path == built.sealed:
            lied = reseal(lied, read_footer(data), header_crc=crc32c(lied[:HEADER_SIZE]))
        damaged.put(path, lied)
        assert [f.reason for f in check(damaged, built) if f.path == path] == [reason]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 275, 276])
def test_a_sealed_file_that_was_cut_is_found(healthy: tuple[SimDisk, Built], size: int) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.sealed, disk.contents(built.sealed)[:size])
    finding = only(check(damaged, built))
    assert (finding.level, finding.path) == (Level.ERROR, built.sealed)
