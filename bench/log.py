"""The log's costs as ratios inside one run, one JSON line per case.

Run by ``make bench``, or ``python bench/log.py --directory DIR`` to choose the disk. Machines
differ and are noisy, so each case is measured in turns with its baseline and only the ratio of the
best rounds is meant to be compared; ``goal`` says what it should be.
"""

import argparse
import json
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from crc32c import crc32c

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import decode_entries, encode_group
from onelog.ual.files import DiskFiles, File
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log
from onelog.ual.ring import HotRing
from onelog.ual.segments.sealed import SealedSegment
from tests.ual.shards import check_groups, make_shard, seal_closed

GROUP_ENTRIES = 256
PAYLOAD_SIZE = 128
ROUNDS = 7


def report(case: str, **fields: object) -> None:
    print(json.dumps({"case": case, **fields}), flush=True)


def best_seconds(rounds: int, *steps: Callable[[], None]) -> list[float]:
    """Run the steps in turns, so that noise affects all alike; return each one's best time."""
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for number, step in enumerate(steps):
            started = time.perf_counter()
            step()
            best[number] = min(best[number], time.perf_counter() - started)
    return best


def open_shard(directory: Path, name: str, config: LogConfig) -> tuple[Log, ShardPaths]:
    files = DiskFiles()
    paths = make_shard(files, directory / name)
    log, _ = open_log(files, paths, open_hard_state(files, paths), shard=0, config=config)
    return log, paths


def bench_append(directory: Path) -> None:
    """Compare groups through the log with the least that any writer of these bytes must do.

    Neither side syncs while it is timed: the log syncs between rounds, which are too small to
    require a sync of their own.
    """
    groups = 300
    rng = Random(1)
    drafts = [(0x0101, rng.randbytes(PAYLOAD_SIZE), 0) for _ in range(GROUP_ENTRIES)]
    log, _ = open_shard(directory, "append", LogConfig())
    bare = os.open(directory / "bare", os.O_CREAT | os.O_WRONLY)
    pack_rest, pack_crc = struct.Struct("<HHQQQII").pack, struct.Struct("<I").pack

    def bare_loop() -> None:
        index = 1
        for _ in range(groups):
            parts: list[bytes] = []
            add = parts.append
            left = GROUP_ENTRIES
            for entry_type, payload, flags in drafts:
                left -= 1
                rest = pack_rest(entry_type, flags, 1, index, 1, len(payload), left) + payload
                add(pack_crc(crc32c(rest)))
                add(rest)
                index += 1
            os.write(bare, b"".join(parts))

    def through_the_log() -> None:
        for _ in range(groups):
            log.append(drafts, term=1, timestamp_ns=1)

    baseline_s, ours_s, _ = best_seconds(ROUNDS, bare_loop, through_the_log, log.sync)
    entries = groups * GROUP_ENTRIES
    report(
        "append",
        ratio=round(baseline_s / ours_s, 3),
        goal=">= 0.5 of a bare pack + crc32c + join + write loop",
        entries_per_s=round(entries / ours_s),
        bare_entries_per_s=round(entries / baseline_s),
    )
    os.close(bare)


def bench_scan(directory: Path) -> None:
    """Whole sealed segments as columns against decoding their entries one by one."""
    config = LogConfig(segment_bytes_max=16 << 20)
    log, _ = open_shard(directory, "scan", config)
    drafts = [(0x0101, bytes(PAYLOAD_SIZE), 0)] * GROUP_ENTRIES
    while len(log.segments.segments) < 5:
        log.append(drafts, term=1, timestamp_ns=log.last_timestamp_ns + 1000)
    log.sync()
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    seal_closed(log)
    paths = [part.path for part in log.segments.segments if isinstance(part, SealedSegment)]
    files = DiskFiles()
    counts = [0, 0]

    def columns() -> None:
        # A new object each time, so that the checksum of the file is part of the cost.
        for path in paths:
            segment = SealedSegment.open(files, path)
            found = segment.columns(segment.first_index, segment.last_index)
            assert int(found.payload_len.sum()) == len(found) * PAYLOAD_SIZE
            counts[0] += len(found)

    def entry_by_entry() -> None:
        for path in paths:
            segment = SealedSegment.open(files, path)
            entries = segment.mapped_bytes()[64 : segment.footer.entries_end]
            total = 0
            for group in check_groups(entries, segment.first_index):
                for entry in decode_entries(group.data):
                    total += len(entry.payload)
                    counts[1] += 1
            assert total == segment.entry_count * PAYLOAD_SIZE

    ours_s, loop_s = best_seconds(3, columns, entry_by_entry)
    assert counts[0] == counts[1]
    entries = counts[0] // 3
    report(
        "scan",
        ratio=round(loop_s / ours_s, 1),
        goal=">= 10 x the per-entry loop, file checksum included",
        entries_per_s=round(entries / ours_s),
        loop_entries_per_s=round(entries / loop_s),
    )


def bench_ring() -> None:
    """A random entry of the hot ring against a dict lookup plus a slice of the same memory."""
    ring = HotRing(8 << 20, 1)
    rng = Random(2)
    for first in range(1, 40_000, GROUP_ENTRIES):
        drafts = [(0x0101, rng.randbytes(PAYLOAD_SIZE), 0) for _ in range(GROUP_ENTRIES)]
        ring.append(encode_group(drafts, term=1, first_index=first, timestamp_ns=1))
    indexes = [rng.randrange(ring.first_index, ring.next_index) for _ in range(100_000)]
    size = PAYLOAD_SIZE + 40
    memory = b"".join(data for i in range(1, ring.next_index) if (data := ring.read(i)))
    positions = {i: ((i - 1) * size, i * size) for i in range(1, ring.next_index)}
    assert all(memory[slice(*positions[i])] == ring.read(i) for i in indexes[:1000])

    def dict_and_slice() -> None:
        for index in indexes:
            start, end = positions[index]
            memory[start:end]

    def ring_read() -> None:
        read = ring.read
        for index in indexes:
            read(index)

    baseline_s, ours_s = best_seconds(ROUNDS, dict_and_slice, ring_read)
    report(
        "ring_read",
        ratio=round(ours_s / baseline_s, 2),
        goal="<= 3 x a dict lookup plus slice",
        ns=round(ours_s / len(indexes) * 1e9),
        baseline_ns=round(baseline_s / len(indexes) * 1e9),
    )


class CountingFile:
    """A file that counts what is read of it."""

    def __init__(self, file: File, counter: "CountingFiles") -> None:
        self._file = file
        self._counter = counter
        self.write, self.truncate, self.sync, self.size = (
            file.write, file.truncate, file.sync, file.size,
        )  # fmt: skip

    def read(self, size: int, offset: int) -> bytes:
        data = self._file.read(size, offset)
        self._counter.bytes_read += len(data)
        return data


class CountingFiles(DiskFiles):
    """The real file system, counting bytes read and mapped of sealed segments."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0
        self.bytes_mapped = 0

    def open_read(self, path: Path) -> File:
        file = super().open_read(path)
        return CountingFile(file, self) if path.suffix == ".flseg" else file

    def map(self, path: Path) -> memoryview:
        view = super().map(path)
        if path.suffix == ".flseg":
            self.bytes_mapped += len(view)
        return view


def bench_open(directory: Path) -> None:
    """Opening many sealed segments must cost their tables, not their entries."""
    segments = 100
    config = LogConfig(ring_bytes=1 << 20, segment_bytes_max=1 << 20)
    log, paths = open_shard(directory, "open", config)
    drafts = [(0x0101, bytes(PAYLOAD_SIZE), 0)] * GROUP_ENTRIES
    while len(log.segments.segments) <= segments:
        log.append(drafts, term=1, timestamp_ns=log.last_timestamp_ns + 10**8)
    log.sync()
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    seal_closed(log)
    log.close()
    sealed = [part for part in log.segments.segments if isinstance(part, SealedSegment)]
    total = sum(part.size_bytes for part in sealed)
    tables = sum(
        64 + 212 + part.footer.sparse.size + part.footer.time.size + part.footer.voids.size
        for part in sealed
    )
    for part in sealed:
        descriptor = os.open(part.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    files = CountingFiles()
    hard_state = open_hard_state(files, paths)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    open_log(files, paths, hard_state, shard=0, config=config)
    elapsed_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    report(
        "open_100_segments",
        ratio=round(files.bytes_read / total, 5),
        goal="reads header, footer and resident tables only; maps nothing",
        segments=len(sealed),
        bytes_read=files.bytes_read,
        bytes_of_tables=tables,
        bytes_mapped=files.bytes_mapped,
        bytes_of_files=total,
        major_page_faults=after.ru_majflt - before.ru_majflt,
        minor_page_faults=after.ru_minflt - before.ru_minflt,
        ms=round(elapsed_s * 1000, 1),
    )
    assert files.bytes_read == tables
    assert files.bytes_mapped == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        bench_append(directory)
        bench_scan(directory)
        bench_ring()
        bench_open(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
