"""What snapshots cost, as ratios inside one run, one JSON line per case.

``python bench/snapshots.py --keys 1000000 --directory DIR``. Write and load are compared with a
plain write of the same bytes to the same disk, replay from sealed segments with applying the same
entries from memory. Only ratios are meant to be compared between machines. (The file is not called
like the package: a script's own directory comes first where Python looks for modules.)
"""

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from onelog.projections.kv.commands import Put, encode_command
from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.build import Capture, plan_build
from onelog.snapshot.builder_process import BuilderProcess
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.recovery import recover_state
from onelog.snapshot.replay import replay
from onelog.snapshot.state import hash_text, load_state, write_state
from onelog.snapshot.store import SnapshotStore
from onelog.snapshot.writer import write_snapshot
from onelog.ual.entry import Draft, Entry, decode_entries, encode_group
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from tests.snapshot.live import accept
from tests.ual.shards import close_active, make_shard, seal_closed

GROUP_ENTRIES = 256
RAW_WRITE_SIZE = 256 << 10
ROUNDS = 3


def report(case: str, **fields: object) -> None:
    print(json.dumps({"case": case, **fields}), flush=True)


def seconds(step: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def cpu_seconds(step: Callable[[], object]) -> float:
    """Time on a processor, which a busy machine does not stretch."""
    gc.collect()
    started = time.process_time()
    step()
    return time.process_time() - started


def drafts(count: int) -> Iterator[list[Draft]]:
    """Yield groups of puts: 16-byte keys in random order, values of 64 to 128 bytes."""
    rng = Random(1)
    numbers = list(range(count))
    rng.shuffle(numbers)
    for start in range(0, count, GROUP_ENTRIES):
        yield [
            encode_command(Put(b"%016d" % number, rng.randbytes(rng.randint(64, 128))), "default")
            for number in numbers[start : start + GROUP_ENTRIES]
        ]


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def filled(count: int) -> Projections:
    """Return projections with ``count`` keys."""
    state = build_projections(ApplyNotes())
    index = 1
    for group in drafts(count):
        encoded = encode_group(group, term=1, first_index=index, timestamp_ns=index)
        state.router.apply_group(decode_entries(encoded.data))
        index += len(group)
    return state


def write_raw(path: Path, content: bytes) -> None:
    """Write the bytes with plain writes, and make them durable."""
    data = memoryview(content)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for at in range(0, len(data), RAW_WRITE_SIZE):
        os.write(descriptor, data[at : at + RAW_WRITE_SIZE])
    os.fdatasync(descriptor)
    os.close(descriptor)


def bench_write(directory: Path, keys: int) -> tuple[Path, str, float]:
    """Write the state of all keys; return the file, the state hash and the plain write's time."""
    before = rss_bytes()
    state = filled(keys)
    state_bytes = rss_bytes() - before
    header = SnapshotHeader(0, keys, 1, (keys - 1) // GROUP_ENTRIES + 1, 1)
    notes = CoveredNotes(keys + 1, SegmentNotes())
    path = directory / f"{keys:010d}-1.fsnap"

    def write() -> None:
        write_state(DiskFiles(), directory, header, 1, state.router, notes, free_bytes_min=0)

    first_s = seconds(write)  # also sorts the keys, which later ones find sorted
    content = path.read_bytes()
    chunks = [content[at : at + RAW_WRITE_SIZE] for at in range(0, len(content), RAW_WRITE_SIZE)]

    def write_chunks() -> None:
        write_snapshot(DiskFiles(), directory, header, 2, [(1, chunks)], free_bytes_min=0)

    steps = (write, write_chunks, lambda: write_raw(directory / "raw", content))
    times = [[seconds(step) for step in steps] for _ in range(ROUNDS)]
    ours_s, chunks_s, raw_s = (min(column) for column in zip(*times, strict=True))
    size = len(content)
    report(
        "write_bytes",
        ratio=round(chunks_s / raw_s, 2),
        goal="the same bytes as a section, without a state: checksums, syncs on the way, rename",
        size_bytes=size,
        seconds=round(chunks_s, 3),
    )
    report(
        "write",
        ratio=round(ours_s / raw_s, 2),
        ratio_first=round(first_s / raw_s, 2),
        goal="beside a plain write and fdatasync of the same bytes",
        keys=keys,
        size_bytes=size,
        seconds=round(ours_s, 3),
        raw_seconds=round(raw_s, 3),
        mb_per_s=round(size / ours_s / 1e6),
        us_per_key=round(ours_s / keys * 1e6, 2),
        cpu_us_per_key=round(cpu_seconds(write) / keys * 1e6, 2),
        state_rss_bytes_per_key=round(state_bytes / keys),
    )
    return path, hash_text(state.router), raw_s


def bench_load(path: Path, expected_hash: str, raw_s: float, keys: int) -> None:
    """Verify and load the file, and compare with a plain write of the same bytes."""
    files = DiskFiles()

    def verify() -> None:
        SnapshotReader.open(files, path).verify()

    def load() -> None:
        loaded = build_projections(ApplyNotes())
        load_state(SnapshotReader.open(files, path), loaded.router)
        assert hash_text(loaded.router) == expected_hash

    verify_s = min(seconds(verify) for _ in range(ROUNDS))
    load_s = min(seconds(load) for _ in range(ROUNDS - 1))
    report(
        "load",
        ratio=round((verify_s + load_s) / raw_s, 2),
        goal="verify and load, beside a plain write and fdatasync of the same bytes",
        keys=keys,
        verify_seconds=round(verify_s, 3),
        load_seconds=round(load_s, 3),
        verify_mb_per_s=round(path.stat().st_size / verify_s / 1e6),
        us_per_key=round(load_s / keys * 1e6, 2),
        cpu_us_per_key=round(cpu_seconds(load) / keys * 1e6, 2),
    )


def bench_replay(directory: Path, entries: int) -> None:
    """Replay sealed segments, and build a snapshot of them in a process of its own."""
    files = DiskFiles()
    paths = make_shard(files, directory / "data")
    config = LogConfig(free_bytes_min=0)
    log, _ = open_log(files, paths, open_hard_state(files, paths), shard=0, config=config)
    store = SnapshotStore.open(files, paths, log)
    live = recover_state(files, 0, log, store, build_projections).state
    applied_s = 0.0
    for group in drafts(entries):
        encoded = log.append(group, term=1, timestamp_ns=log.last_timestamp_ns + 1000)
        decoded: list[Entry] = decode_entries(encoded.data)
        started = time.process_time()
        live.router.apply_group(decoded)
        applied_s += time.process_time() - started
    close_active(log)
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    seal_closed(log)
    sizes = [part.path.stat().st_size for part in log.segments.segments[:-1]]
    state = build_projections(ApplyNotes())
    replay_s = cpu_seconds(
        lambda: replay(state.router, log.segments.scan(1, entries), last_index=entries)
    )
    assert hash_text(state.router) == hash_text(live.router)
    report(
        "replay",
        ratio=round(replay_s / applied_s, 2),
        goal="sealed segments, checksums included, beside applying the same entries from memory",
        entries=entries,
        segments=len(sizes),
        size_bytes=sum(sizes),
        cpu_seconds=round(replay_s, 3),
        apply_cpu_seconds=round(applied_s, 3),
        entries_per_cpu_s=round(entries / replay_s),
    )
    capture = Capture.of(live.router)
    request = plan_build(capture, log, store, data_dir=directory / "data", shard=0, created_s=1)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    result = BuilderProcess(files, request).wait()
    built_s = time.perf_counter() - started
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime - children.ru_utime - children.ru_stime
    accept(log, store, result.record, capture.state_hash)
    report(
        "builder_process",
        ratio=round(cpu_s / replay_s, 2),
        goal="start, replay all and write, beside the replay alone",
        cpu_seconds=round(cpu_s, 3),
        entries=result.entry_count,
        seconds=round(built_s, 3),
        memory_bytes_peak=result.memory_bytes_peak,
        size_bytes=result.record.size,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        path, expected_hash, raw_s = bench_write(Path(name), arguments.keys)
        bench_load(path, expected_hash, raw_s, arguments.keys)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        bench_replay(Path(name), arguments.keys)
    return 0


if __name__ == "__main__":
    sys.exit(main())
