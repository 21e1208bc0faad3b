"""Streams compared with the bare log: the extra cost of appending and reading records.

One JSON line per case. A ratio compares loops over the same entries, in turns, in one process, and
takes the best round of each: a slow or busy machine slows both. ``bare log`` appends and reads the
same entries without decoding them; the stream side applies each of them through
the router (state hash, accounts and notes included) and reads through the log's stream tables into
decoded records. Memory is the growth of a fresh process.

    .venv/bin/python bench/models_stream.py [--records N]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from onelog.projections.projection import Notes
from onelog.projections.result import Applied
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Command,
    Create,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupCreate,
    GroupJoin,
    ProducerRef,
    encode_command,
)
from onelog.ual.entry import Draft, Entry
from onelog.ual.files import DiskFiles
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log
from tests.projections.stream.stream_pages import read_page
from tests.ual.shards import close_active, make_shard, seal_closed

RECORDS = 200_000
GROUP_ENTRIES = 256
VALUE_SIZE = 100
MEMORY_CHUNK = 1_000  # few at a time: entries that wait are not state
ROUNDS = 5
NAMESPACE = "default"
SECOND = 1_000_000_000


def report(case: str, **figures: float | int | str) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def best_seconds(rounds: int, *steps: Callable[[], object]) -> list[float]:
    """Run the steps in turns, so that noise affects all alike; return each one's best time."""
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for number, step in enumerate(steps):
            started = time.perf_counter()
            step()
            best[number] = min(best[number], time.perf_counter() - started)
    return best


def make_log(directory: Path, name: str) -> Log:
    files = DiskFiles()
    paths = make_shard(files, directory / name)
    config = LogConfig(segment_bytes_max=16 << 20)
    return open_log(files, paths, open_hard_state(files, paths), shard=0, config=config)[0]


def append_groups(log: Log, drafts: list[Draft], count: int, apply: Callable[[int], None]) -> None:
    """Append ``count`` groups as a leader does and hand each to ``apply`` by its first index."""
    for _ in range(count):
        group = log.append(drafts, term=1, timestamp_ns=log.last_timestamp_ns + 1_000_000)
        log.mark_committed(group.last_index)
        apply(group.first_index)
        log.mark_applied(group.last_index)


def bench_append(directory: Path, records: int) -> tuple[Log, Projections]:
    draw = Random(1)
    drafts = [
        encode_command(Append("s", draw.randbytes(VALUE_SIZE), b"key-%04d" % n), NAMESPACE)
        for n in range(GROUP_ENTRIES)
    ]
    bare, log = make_log(directory, "bare"), make_log(directory, "stream")
    state = build_projections(log.notes)
    router_apply = state.router.apply

    def read_only(first: int) -> None:
        for _ in bare.scan(first):
            pass

    def apply(first: int) -> None:
        for entry in log.scan(first):
            router_apply(entry)

    append_groups(log, [encode_command(Create("s"), NAMESPACE)], 1, apply)
    groups = records // GROUP_ENTRIES // ROUNDS
    bare_s, read_s, stream_s = best_seconds(
        ROUNDS,
        lambda: append_groups(bare, drafts, groups, lambda _: None),
        lambda: append_groups(bare, drafts, groups, read_only),
        lambda: append_groups(log, drafts, groups, apply),
    )
    count = groups * GROUP_ENTRIES
    report(
        "append through log and router",
        ratio_to_bare_append=stream_s / bare_s,
        ratio_to_append_and_read=stream_s / read_s,
        record_us=stream_s / count * 1e6,
        bare_us=bare_s / count * 1e6,
        apply_us=(stream_s - read_s) / count * 1e6,
    )
    return log, state


def bench_read(log: Log, state: Projections, case: str) -> None:
    (partition_id,) = state.stream.kept_streams()
    count = 0

    def bare_scan() -> None:
        nonlocal count
        count = sum(1 for _ in log.scan(log.first_index))

    def stream_scan() -> None:
        assert sum(1 for _ in log.scan(log.first_index, stream_id=partition_id)) == count - 1

    def read_records() -> None:
        offset, found = 0, 0
        while offset <= log.last_index:
            page = read_page(state.stream, log, "s", 0, offset)
            found += len(page.items)
            offset = page.next_offset
        assert found == count - 1

    bare_s, scan_s, read_s = best_seconds(ROUNDS, bare_scan, stream_scan, read_records)
    report(
        case,
        ratio_of_table_scan=scan_s / bare_s,
        ratio_of_decoded_records=read_s / bare_s,
        bare_us=bare_s / count * 1e6,
        record_us=read_s / count * 1e6,
    )


class CountingNotes:
    """Notes that keep nothing, so that memory is the projection's alone."""

    def add_record(self, stream_id: int, index: int) -> None:
        pass

    def add_void(self, first_index: int, last_index: int) -> None:
        raise AssertionError(f"refused: {first_index} to {last_index}")


class Runner:
    """Applies commands to projections without a log."""

    def __init__(self, notes: Notes) -> None:
        self.state = build_projections(notes)

    def entries(self, commands: list[Command]) -> list[Entry]:
        first = self.state.router.applied_index + 1
        drafts = [encode_command(command, NAMESPACE) for command in commands]
        return [
            Entry(draft.entry_type, 0, 1, index, index * 1_000, 0, draft.payload)
            for index, draft in enumerate(drafts, first)
        ]

    def run(self, commands: list[Command]) -> float:
        entries = self.entries(commands)
        apply = self.state.router.apply
        started = time.perf_counter()
        for entry in entries:
            apply(entry)
        ended = time.perf_counter()
        return (ended - started) / len(entries) * 1e6

    def one(self, command: Command) -> int:
        (entry,) = self.entries([command])
        result = self.state.router.apply(entry)
        assert isinstance(result, Applied), result
        return entry.index


def bench_operations() -> None:
    runner = Runner(CountingNotes())
    count = 20_000
    value = bytes(VALUE_SIZE)
    runner.one(Create("one"))
    runner.one(Create("many", 16))
    keys = [b"key-%d" % (n % 997) for n in range(count)]
    report("apply: append", operation_us=runner.run([Append("one", value) for _ in keys]))
    keyed: list[Command] = [Append("many", value, key) for key in keys]
    report("apply: append by key, 16 partitions", operation_us=runner.run(keyed))
    numbered: list[Command] = [
        Append("one", value, producer=ProducerRef(1, 0, n)) for n in range(count)
    ]
    report("apply: append of a producer", operation_us=runner.run(numbered))
    start = runner.one(Create("queue")) + 1
    runner.one(GroupCreate("queue", "g", 0, GroupConfig(shared=True)))
    member = runner.one(GroupJoin("queue", "g", 3_600 * SECOND))
    first = runner.state.router.applied_index + 1
    runner.run([Append("queue", value) for _ in range(count)])
    batches = [tuple(range(at, at + 100)) for at in range(first, first + count, 100)]
    delivers: list[Command] = []
    for offsets in batches:
        end = offsets[-1] + 1
        delivers.append(Deliver("queue", "g", member, 1, 0, start, end, offsets))
        delivers.append(Ack("queue", "g", member, tuple((0, offset) for offset in offsets)))
        start = end
    report("apply: deliver and ack, 100 at a time", record_us=runner.run(delivers) * 2 / 100)
    runner.one(GroupCreate("one", "g", 0))
    low = min(runner.state.stream.kept_streams().values()) + 10  # any offset there will do
    commits: list[Command] = [
        GroupCommit("one", "g", 0, 0, ((0, low + n),)) for n in range(count // 4)
    ]
    report("apply: commit, published as a key", operation_us=runner.run(commits))


def resident_size() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def fill_and_report(records: int) -> None:
    """Append, and report the growth. Arenas of the allocator have 1 MiB: less is noise."""
    runner = Runner(CountingNotes())
    runner.one(Create("s"))
    value = bytes(VALUE_SIZE)

    def fill(count: int) -> None:
        for _ in range(count // MEMORY_CHUNK):
            runner.run([Append("s", value) for _ in range(MEMORY_CHUNK)])

    fill(20_000)  # warm up: entries take memory before they are applied, which stays allocated
    before, objects_before = resident_size(), sys.getallocatedblocks()
    fill(records)
    report(
        "memory",
        rss_per_record=(resident_size() - before) / records,
        objects_grown=sys.getallocatedblocks() - objects_before,
        records=records,
    )


def run_memory(records: int) -> None:
    code = (
        "import sys; sys.path.insert(0, '.');"
        "from bench.models_stream import fill_and_report;"
        f"fill_and_report({records})"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        log, state = bench_append(Path(name), arguments.records)
        bench_read(log, state, "sequential read, open files")
        close_active(log)
        seal_closed(log)
        bench_read(log, state, "sequential read, sealed files")
    bench_operations()
    run_memory(1_000_000)


if __name__ == "__main__":
    main()
